"""Removing: commits that are not kept, packs that nothing needs, and what a crash left."""

import re
from collections.abc import Callable
from pathlib import Path

import msgspec

from bitproof.errors import CheckpointCorruptError, StoreVersionError
from bitproof.store.atomic import TEMPORARY, sync_folder
from bitproof.store.commits import Commits
from bitproof.store.layout import Layout
from bitproof.store.manifest import Commit
from bitproof.store.system import System

_DIGEST = re.compile(rb"[0-9a-f]{32}")


class Swept(msgspec.Struct, frozen=True):
    """What a sweep removed: how many files, and their bytes."""

    files: int
    size: int


class Sweeper:
    """Removes from one store; its lock is held, so nobody is writing.

    Args:
        system: where files are removed.
        layout: of the store.
        commits: of the store.
        note: told what was tolerated.
    """

    def __init__(self, system: System, layout: Layout, commits: Commits, note: Callable[[str], None]) -> None:
        self._system, self._layout, self._commits, self._note = system, layout, commits, note

    def remove(self, doomed: list[Commit]) -> None:
        """Remove commits, then, when that is durable, the packs that they alone need."""
        if not doomed:
            return
        for commit in doomed:
            self._system.unlink(self._layout.commit(commit.sequence))
            self._commits.forget(commit.sequence)
        sync_folder(self._system, self._layout.checkpoints, self._note)
        needed = self._needed()
        if needed is not None:
            for name in {pack.name for commit in doomed for pack in commit.packs} - needed:
                self._unlink(self._layout.pack(name))

    def sweep(self) -> Swept:
        """Remove files that were being written, and packs that nothing refers to."""
        doomed = self._layout.leftovers(TEMPORARY)
        needed = self._needed()
        if needed is not None:
            doomed += [path for path in self._layout.packs() if path.stem not in needed]
        sizes = [self._unlink(path) for path in doomed]
        return Swept(len(sizes), sum(sizes))

    def clear_quarantine(self) -> None:
        """Remove the commits that were set aside."""
        for path in self._layout.set_aside():
            self._system.unlink(path)

    def _needed(self) -> set[str] | None:
        """Return the names of the packs in use; None if a commit cannot be read, and nothing may be removed then."""
        needed: set[str] = set()
        for sequence in self._layout.commits():
            try:
                needed |= {pack.name for pack in self._commits.get(sequence).packs}
            except (CheckpointCorruptError, StoreVersionError):
                return None
        for path in self._layout.set_aside():
            # It may be damaged, so it is not decoded: whatever in it can be the name of a pack is taken for one.
            needed |= {name.decode() for name in _DIGEST.findall(self._system.read(path))}
        return needed

    def _unlink(self, path: Path) -> int:
        try:
            size = max(0, self._system.size(path))
            self._system.unlink(path)
        except FileNotFoundError:
            return 0
        return size
