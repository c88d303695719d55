"""``bitproof gc``."""

from pathlib import Path
from typing import Annotated

import typer


def gc(
    run: Annotated[Path, typer.Argument(help="A run's folder.")],
    quarantine: Annotated[bool, typer.Option("--quarantine", help="Remove damaged checkpoints, too.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON and nothing else.")] = False,
) -> None:
    """Remove what no checkpoint of a run needs: files that a crash left, and on demand what was set aside as damaged.

    Examples:
      bitproof gc runs/digits
    """
    from bitproof.cli.output import print_json, print_lines, size_text  # noqa: PLC0415  # --help must be quick
    from bitproof.run.ranks import folders  # noqa: PLC0415
    from bitproof.store import Store  # noqa: PLC0415

    files = size = 0
    for folder in folders(run):
        with Store(folder, create=False) as store:
            swept = store.gc(quarantine=quarantine)
        files, size = files + swept.files, size + swept.size
    if json:
        print_json({"format": 1, "files": files, "bytes": size})
    else:
        print_lines([f"removed {files} files, {size_text(size)}"])
