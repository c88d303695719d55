"""``bitproof price``."""

from pathlib import Path
from typing import Annotated

import typer


def price(
    command: Annotated[
        list[str],
        typer.Argument(help="The training command, after --; {out} stands for a fresh folder.", metavar="-- COMMAND…"),
    ],
    steps: Annotated[int, typer.Option(metavar="N", min=2, help="Steps to time in each leg.")] = 30,
    warm_up: Annotated[int, typer.Option(metavar="N", min=1, help="Steps before them that do not count.")] = 5,
    rounds: Annotated[int, typer.Option(metavar="N", min=1, help="Legs with and without, in turn.")] = 3,
    whole: Annotated[bool, typer.Option("--whole", help="Only all settings together, not each alone.")] = False,
    output: Annotated[
        Path | None, typer.Option(help="A folder the command always writes to; it is put back between the legs.")
    ] = None,
    work: Annotated[Path, typer.Option(metavar="DIR", help="Folder for logs and {out} folders.")] = Path(".bitproof"),
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=0.1, help="Give up a leg that takes longer. Default: never.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON and nothing else.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Measure what determinism costs on a training command: steps a second with and without, in turn.

    Each leg is ended after its last timed step, so give the command {out} (or --output) if it writes checkpoints.

    Exit status: 0 measured, 3 the command failed or took no step that could be timed.

    Examples:
      bitproof price -- python train.py --out {out}

      bitproof price --steps 100 --rounds 5 --json -- python train.py --out {out}
    """
    from bitproof.cli.output import console, print_json, reader_may_leave  # noqa: PLC0415  # --help must be quick
    from bitproof.cli.progress import ProgressLine  # noqa: PLC0415
    from bitproof.price.price import Measurement  # noqa: PLC0415
    from bitproof.price.price import price as measure  # noqa: PLC0415

    wanted = Measurement(
        command=command,
        steps=steps,
        warm_up=warm_up,
        rounds=rounds,
        output=output,
        work=work,
        timeout=timeout,
        each=not whole,
    )
    found = measure(wanted, ProgressLine(quiet=quiet))
    if json:
        print_json(found)
    else:
        from bitproof.report.price import render  # noqa: PLC0415  # --help must be quick

        with reader_may_leave():
            render(found, console())
    raise typer.Exit(3 if found.reason is not None else 0)
