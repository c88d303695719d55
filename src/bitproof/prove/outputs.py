"""Where a command writes: a fresh ``{out}`` folder a trial, and a folder of its own that is put back."""

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from bitproof.errors import OutputError, UsageError

PLACEHOLDER = "{out}"


class Kept(msgspec.Struct):
    """A user's folder and the copy by which it is put back; written to disk, so that a guard can do it.

    Args:
        path: the folder, with symbolic links on the way to it resolved.
        backup: its copy.
        existed: whether there was a folder at all.
        made: folders above it that did not exist, from the deepest up.
    """

    path: str
    backup: str
    existed: bool
    made: list[str] = []


def fill(command: Sequence[str], out: Path) -> list[str]:
    """Put the folder in the place of ``{out}`` in every argument."""
    return [part.replace(PLACEHOLDER, str(out)) for part in command]


def check(path: Path, work: Path) -> None:
    """Refuse an output folder that cannot be emptied and filled again.

    Raises:
        UsageError: it is no folder, or something that must stay lies in it.
    """
    whole = path.resolve()
    if path.is_symlink() and not path.exists():
        raise UsageError(f"--output {path}: a symbolic link to {whole}, which does not exist. Make that folder first.")
    if path.exists() and not path.is_dir():
        raise UsageError(f"--output {path}: expected a folder, found a file. Name the folder that the file lies in.")
    if not path.exists() and any(parent.exists() and not parent.is_dir() for parent in whole.parents):
        raise UsageError(f"--output {path}: there can be no folder of this name, as a part of the path is a file")
    for what, inside in (("the current folder", Path.cwd()), ("the work folder", work.resolve())):
        if whole == inside or whole in inside.parents:
            raise UsageError(
                f"--output {path}: {what} ({inside}) is in it, and the output folder is emptied and put back between "
                "the legs. Name a folder of its own below, or move the other one."
            )


def keep(path: Path, folder: Path) -> Kept:
    """Copy a user's folder, so that it can be put back.

    Raises:
        UsageError: there is no room for the copy, or it cannot be made.
    """
    whole, backup = path.resolve(), folder / "output-before"
    if not whole.exists():
        made = [str(parent) for parent in whole.parents if not parent.exists()]
        return Kept(str(whole), str(backup), existed=False, made=made)
    size, free = _size(whole), shutil.disk_usage(folder).free
    if size > free:
        raise UsageError(
            f"--output {path}: it holds {size / 1e9:.1f} GB, and its copy does not fit into {folder}, where "
            f"{free / 1e9:.1f} GB are free. Choose a --work folder on a larger disk, or an emptier output folder."
        )
    try:
        shutil.copytree(whole, backup, symlinks=True)
    except (OSError, shutil.Error) as error:
        shutil.rmtree(backup, ignore_errors=True)
        raise UsageError(f"--output {path}: it cannot be copied, so it could not be put back: {_why(error)}") from error
    return Kept(str(whole), str(backup), existed=True)


def put_back(kept: Kept) -> None:
    """Make the user's folder what it was. The copy stays, so that this can be done again.

    Its content is replaced and the folder itself stays, since it may be a mount point or somebody's current folder.

    Raises:
        OutputError: something could not be written; the copy is whole.
    """
    path = Path(kept.path)
    try:
        _empty(path, stays=kept.existed)
        if kept.existed:
            shutil.copytree(kept.backup, path, symlinks=True, dirs_exist_ok=True)
            return
        for parent in kept.made:
            if Path(parent).is_dir() and not any(Path(parent).iterdir()):
                Path(parent).rmdir()
    except (OSError, shutil.Error) as error:
        raise OutputError(
            f"the output folder {path} could not be put back: {_why(error)}. "
            + (
                f"Its content is whole in {kept.backup}; copy it from there."
                if kept.existed
                else "It did not exist before."
            )
        ) from error


def files_below(folder: Path) -> set[str]:
    """List the files below a folder, by their names relative to it."""
    return {str(file.relative_to(folder)) for file in _files(folder)}


def _files(folder: Path) -> Iterator[Path]:
    for where, _, names in os.walk(folder):
        yield from (Path(where) / name for name in names)


def _empty(path: Path, *, stays: bool) -> None:
    if path.is_dir() and not path.is_symlink():
        for child in list(path.iterdir()):
            if child.is_dir() and not child.is_symlink():
                shutil.rmtree(child)
            else:
                child.unlink()
        if not stays:
            path.rmdir()
    elif os.path.lexists(path):
        path.unlink()


def _size(folder: Path) -> int:
    return sum(file.lstat().st_size for file in _files(folder))


def _why(error: OSError) -> str:
    if isinstance(error, shutil.Error) and error.args and isinstance(error.args[0], list):
        source, _, reason = error.args[0][0]
        return f"{source}: {reason}"
    return f"{error.filename}: {error.strerror}" if error.filename else str(error)
