"""``bitproof ls``."""

from pathlib import Path
from typing import Annotated

import typer


def ls(
    run: Annotated[Path, typer.Argument(help="A run's folder.")],
    json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON and nothing else.")] = False,
) -> None:
    """List the checkpoints of a run, oldest first.

    Examples:
      bitproof ls runs/digits
    """
    from bitproof.cli.output import facts_line, print_json, print_lines, size_text  # noqa: PLC0415  # --help must be quick
    from bitproof.store import Store  # noqa: PLC0415

    store = Store(run, create=False)
    commits = store.checkpoints()
    if json:
        print_json({"format": 1, "checkpoints": commits, "problems": [str(problem) for problem in store.problems]})
        return
    lines = [
        f"step {c.step:<9} {c.saved_at}  {size_text(c.size):>13}, {size_text(c.written)} written  "
        + facts_line(c.facts)
        for c in commits
    ]
    print_lines([*lines, *(f"damaged: {problem}" for problem in store.problems)] or ["no checkpoint yet"])
