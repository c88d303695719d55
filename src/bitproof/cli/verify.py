"""``bitproof verify``."""

from pathlib import Path
from typing import Annotated

import typer


def verify(
    run: Annotated[Path, typer.Argument(help="A run's folder.")],
    json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON and nothing else.")] = False,
) -> None:
    """Read every bit of every checkpoint of a run, and list what is not as it was written; nothing is changed.

    Exit status: 0 all is well, 1 something is damaged.

    Examples:
      bitproof verify runs/digits
    """
    from bitproof.cli.output import print_json, print_lines  # noqa: PLC0415  # --help must be quick
    from bitproof.run.ranks import folders  # noqa: PLC0415
    from bitproof.store import Store  # noqa: PLC0415

    stores = [Store(folder, create=False) for folder in folders(run)]
    problems = [problem for store in stores for problem in store.verify()]
    if json:
        print_json({"format": 1, "problems": [{"path": str(p.path), "what": p.what} for p in problems]})
    else:
        count = sum(len(store.checkpoints()) for store in stores)
        print_lines([str(p) for p in problems] or [f"{count} checkpoints, each as it was written"])
    raise typer.Exit(1 if problems else 0)
