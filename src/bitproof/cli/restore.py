"""``bitproof restore``."""

from pathlib import Path
from typing import Annotated

import typer


def restore(
    run: Annotated[Path, typer.Argument(help="A run's folder.")],
    step: Annotated[int, typer.Option(help="Of the checkpoint to go on from.")],
    json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON and nothing else.")] = False,
) -> None:
    """Let a run go on from an older checkpoint: it is saved again as the newest one, and nothing is removed.

    Examples:
      bitproof restore runs/digits --step 120
    """
    from bitproof.cli.output import print_json, print_lines  # noqa: PLC0415  # --help must be quick
    from bitproof.run.checkpoints import go_back  # noqa: PLC0415

    commit = go_back(run, step)
    if json:
        print_json({"format": 1, "checkpoint": commit})
    else:
        print_lines([f"{run} goes on from step {commit.step}"])
