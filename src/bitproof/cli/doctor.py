"""``bitproof doctor``."""

import sys
from pathlib import Path
from typing import Annotated

import typer


def doctor(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            help="The training command, after --; {out} stands for a fresh folder.", metavar="[-- COMMAND…]"
        ),
    ] = None,
    steps: Annotated[int, typer.Option(metavar="N", min=2, help="End the command after step N.")] = 20,
    output: Annotated[
        Path | None, typer.Option(help="A folder the command always writes to; it is put back afterwards.")
    ] = None,
    work: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the trail and the {out} folder.")] = Path(
        ".bitproof"
    ),
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=0.1, help="End the command if it takes longer.")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List every hazard code and run nothing.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON and nothing else.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print the whole environment.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Look for what will make two runs differ, or a resume inexact, in this environment and in a script's first steps.

    The command is run for real and ended after some steps: put {out} where its checkpoint folder goes, or name a fixed
    one with --output. Exit status: 0 no hazard, 1 hazards, 2 the command line is wrong, 3 the command took no step, or
    failed.

    Examples:
      bitproof doctor

      bitproof doctor -- python train.py --out {out}

      bitproof doctor --steps 200 -- torchrun --nproc-per-node 2 train.py --out {out}

      bitproof doctor --list
    """
    from bitproof.cli.output import console, reader_may_leave  # noqa: PLC0415  # --help must be quick
    from bitproof.errors import UsageError  # noqa: PLC0415

    if list_:
        if command:
            raise UsageError("--list runs nothing: leave out the command, or --list")
        _list(as_json=json)
        return
    from bitproof.cli.progress import ProgressLine  # noqa: PLC0415
    from bitproof.doctor.examine import examine_command, examine_environment  # noqa: PLC0415
    from bitproof.prove.options import Options  # noqa: PLC0415

    if command:
        options = Options(command=command, output=output, work=work, steps=steps, timeout=timeout)
        found = examine_command(options, ProgressLine(quiet=quiet))
    else:
        if output is not None:
            raise UsageError(
                "--output is for a command, and there is none. Write it after --, for example: -- python train.py"
            )
        found = examine_environment()
    with reader_may_leave():
        if json:
            sys.stdout.write(found.to_json().decode() + "\n")
        else:
            from bitproof.report.examination import render  # noqa: PLC0415

            render(found, console(), verbose=verbose)
    raise typer.Exit(found.exit_status)


def _list(*, as_json: bool) -> None:
    from bitproof.cli.output import console, print_json, reader_may_leave  # noqa: PLC0415
    from bitproof.doctor.catalogue import CODES  # noqa: PLC0415

    if as_json:
        print_json({"format": 1, "codes": list(CODES)})
        return
    from bitproof.report.examination import render_list  # noqa: PLC0415

    with reader_may_leave():
        render_list(CODES, console())
