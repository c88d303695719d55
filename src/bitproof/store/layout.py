"""Where things are in a store's folder."""

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

from bitproof.errors import CheckpointCorruptError
from bitproof.store.system import System

_COMMIT = re.compile(r"(\d{9,})\.json")
_PACK = re.compile(r"([0-9a-f]{32})\.safetensors")
_FANOUT = re.compile(r"[0-9a-f]{2}")


class Layout:
    """The folders and files of one store; no name that was read from a file becomes part of a path unchecked."""

    def __init__(self, root: Path, system: System) -> None:
        self.root, self._system = root, system
        self.objects, self.checkpoints, self.quarantine = root / "objects", root / "checkpoints", root / "quarantine"
        self.folders = self.objects, self.checkpoints, self.quarantine

    def commit(self, sequence: int) -> Path:
        """Return the path of a commit."""
        return self.checkpoints / _name(sequence)

    def pack(self, name: str) -> Path:
        """Return the path of a pack, of which neither the name nor a folder on the way may lead elsewhere.

        Raises:
            CheckpointCorruptError: the name is not 32 hex digits, or a folder is a link.
        """
        path = self.objects / name[:2] / f"{name}.safetensors"
        if not _PACK.fullmatch(path.name):
            raise CheckpointCorruptError(f"{name!r} is not the name of a pack; expected 32 hex digits.")
        self.refuse_links(self.objects, path.parent)
        return path

    def refuse_links(self, *folders: Path) -> None:
        """Raise CheckpointCorruptError if one of the folders is a link."""
        for folder in folders:
            if folder.is_symlink():
                raise CheckpointCorruptError(f"{folder} is a link; a store keeps its files in folders of its own.")

    def quarantined(self) -> set[int]:
        """Return the sequence numbers that were set aside."""
        found = [_COMMIT.match(name) for name in self._system.names(self.quarantine)]
        return {int(match[1]) for match in found if match}

    def set_aside(self) -> list[Path]:
        """List the commits that were set aside."""
        return [self.quarantine / name for name in self._system.names(self.quarantine)]

    def free_in_quarantine(self, name: str) -> Path:
        """Return a path in quarantine that nothing has yet."""
        taken = set(self._system.names(self.quarantine))
        return self.quarantine / next(new for new in _numbered(name) if new not in taken)

    def commits(self) -> list[int]:
        """List the sequence numbers of the commits, rising."""
        found = [_COMMIT.fullmatch(name) for name in self._system.names(self.checkpoints)]
        return sorted(int(match[1]) for match in found if match and match[0] == _name(int(match[1])))

    def packs(self) -> list[Path]:
        """List the files of all packs."""
        found = []
        for name in self._system.names(self.objects):
            if _FANOUT.fullmatch(name) and not (self.objects / name).is_symlink():
                found += [
                    self.objects / name / file
                    for file in self._system.names(self.objects / name)
                    if _PACK.fullmatch(file) and file.startswith(name)
                ]
        return found

    def leftovers(self, prefix: str) -> list[Path]:
        """List the files that were being written when a writer ended."""
        folders = [self.root, self.objects, self.checkpoints]
        return [folder / name for folder in folders for name in self._system.names(folder) if name.startswith(prefix)]


def _name(sequence: int) -> str:
    return f"{sequence:09d}.json"


def _numbered(name: str) -> Iterator[str]:
    yield name
    yield from (f"{name}.{i}" for i in itertools.count(1))
