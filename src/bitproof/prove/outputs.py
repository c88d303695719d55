"""Where a command writes: a fresh ``{out}`` folder a trial, and a folder of its own that is put back."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec

PLACEHOLDER = "{out}"


class Kept(msgspec.Struct):
    """A user's folder and the copy by which it is put back; written to disk, so that a guard can do it."""

    path: str
    backup: str
    existed: bool


def fill(command: Sequence[str], out: Path) -> list[str]:
    """Put the folder in the place of ``{out}`` in every argument."""
    return [part.replace(PLACEHOLDER, str(out)) for part in command]


def keep(path: Path, folder: Path) -> Kept:
    """Copy a user's folder, so that it can be put back."""
    backup = folder / "output-before"
    existed = path.exists()
    if existed:
        shutil.copytree(path, backup, symlinks=True)
    return Kept(str(path.resolve()), str(backup), existed)


def put_back(kept: Kept) -> None:
    """Make the user's folder what it was. The copy stays, and takes its place only when it is whole."""
    path, backup = Path(kept.path), Path(kept.backup)
    fresh, old = path.with_name(path.name + ".bitproof-new"), path.with_name(path.name + ".bitproof-old")
    for leftover in (fresh, old):
        shutil.rmtree(leftover, ignore_errors=True)
    if kept.existed:
        shutil.copytree(backup, fresh, symlinks=True)
    if path.exists():
        path.rename(old)
    if kept.existed:
        fresh.rename(path)
    shutil.rmtree(old, ignore_errors=True)
