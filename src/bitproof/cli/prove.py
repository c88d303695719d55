"""``bitproof prove``."""

from pathlib import Path
from typing import Annotated

import typer


def prove(
    command: Annotated[
        list[str],
        typer.Argument(help="The training command, after --; {out} stands for a fresh folder.", metavar="-- COMMAND…"),
    ],
    resume_args: Annotated[
        str, typer.Option(help="Appended to the command for the resumed leg.", metavar="'ARGS'")
    ] = "",
    resume_command: Annotated[
        str, typer.Option(help="Run for the resumed leg instead of the command.", metavar="'COMMAND'")
    ] = "",
    output: Annotated[
        Path | None, typer.Option(help="A folder the command always writes to; it is put back between the legs.")
    ] = None,
    kill: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WHEN",
            help="13 (right after step 13), 13.2 (after its second backward pass), 5,9 (two crashes in one run), every, "
            "during-save[:N] or during-save:every (the N-th file is left half written). Repeat it for separate trials. "
            "Default: one step inside an epoch and off the save interval.",
        ),
    ] = None,
    crashes: Annotated[int | None, typer.Option(metavar="N", min=1, help="Spread N crashes over one run.")] = None,
    signal_name: Annotated[
        str, typer.Option("--signal", metavar="NAME", help="Send this instead of KILL, such as TERM or USR1.")
    ] = "KILL",
    steps: Annotated[int | None, typer.Option(metavar="N", help="End every leg after step N of the run.")] = None,
    reference: Annotated[Path | None, typer.Option(metavar="TRAIL", help="Reuse a trail as the reference.")] = None,
    work: Annotated[Path, typer.Option(metavar="DIR", help="Folder for trails and {out} folders.")] = Path(".bitproof"),
    timeout: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=0.1,
            help="End a leg that takes longer. Default: none for the reference, then 10 times its time, at least 120.",
        ),
    ] = None,
    no_control: Annotated[
        bool, typer.Option("--no-control", help="Do not repeat the reference before a cause is called certain.")
    ] = False,
    jobs: Annotated[
        int, typer.Option("--jobs", "-j", metavar="N", min=1, help="Run N trials at the same time; needs {out}.")
    ] = 1,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="Set in every leg what makes PyTorch repeat.")
    ] = False,
    seed: Annotated[
        int | None,
        typer.Option(metavar="N", help="With --deterministic: seed every generator, too, before the script."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON and nothing else.")] = False,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write a page with pictures.")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print all evidence.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Kill a training command, resume it, compare it bit for bit with an uninterrupted run, and say why not.

    The command is run as the reference, again with a fault, then resumed. It needs a checkpoint folder of its own for
    each trial: put {out} where the folder's name goes, or name a fixed one with --output.

    Examples:
      bitproof prove --resume-args=--resume -- python train.py --out {out}

      bitproof prove --kill 13 --kill every --resume-args=--resume -- python train.py --out {out}

      bitproof prove --kill every --jobs 4 --resume-args=--resume -- python train.py --out {out}

      bitproof prove --kill during-save:every --resume-args=--resume -- python train.py --out {out}

      bitproof prove --output runs/ --resume-command 'python train.py --ckpt runs/last.pt' -- python train.py
    """
    from bitproof.cli.output import check_page, show  # noqa: PLC0415  # --help must be quick
    from bitproof.cli.progress import ProgressLine  # noqa: PLC0415
    from bitproof.determinism import chosen  # noqa: PLC0415
    from bitproof.prove import plan  # noqa: PLC0415
    from bitproof.prove.options import Options  # noqa: PLC0415
    from bitproof.prove.prove import prove as run  # noqa: PLC0415

    check_page(html)
    options = Options(
        command=command,
        resume_args=plan.split("--resume-args", resume_args),
        resume_command=plan.split("--resume-command", resume_command),
        output=output,
        work=work,
        wanted=[plan.parse(text) for text in kill or []],
        crashes=crashes,
        steps=steps,
        reference=reference,
        signal_number=plan.signal_number(signal_name),
        timeout=timeout,
        control=not no_control,
        jobs=jobs,
        deterministic=chosen(deterministic=deterministic, seed=seed),
    )
    verdict = run(options, ProgressLine(quiet=quiet))
    show(verdict, as_json=json, page=html, verbose=verbose)
