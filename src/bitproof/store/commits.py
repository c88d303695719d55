"""The commits of a store: found, read, and remembered."""

from collections.abc import Callable

from bitproof.errors import CheckpointCorruptError, CheckpointNotFoundError, StoreVersionError, StoreWriteError
from bitproof.store.atomic import insist
from bitproof.store.layout import Layout
from bitproof.store.manifest import Commit, Contents, Manifest, decode
from bitproof.store.system import System


class Commits:
    """The commits of one store, of which none ever changes, so that each is read once.

    Args:
        system: where files are read.
        layout: of the store.
        note: told what was tolerated.
    """

    def __init__(self, system: System, layout: Layout, note: Callable[[str], None]) -> None:
        self._system, self._layout, self._note = system, layout, note
        self._known: dict[int, Commit] = {}
        self._newest: tuple[Commit, Contents] | None = None

    def next_number(self) -> int:
        """Return a sequence number that was never used, also by one that was set aside."""
        return max([*self._layout.commits()[-1:], *self._layout.quarantined()], default=0) + 1

    def read(self, sequence: int) -> Manifest:
        """Read and verify a manifest.

        Raises:
            CheckpointNotFoundError: there is none.
            CheckpointCorruptError: it is damaged, or a copy of another one.
            StoreVersionError: it is of another version of the format.
        """
        path = self._layout.commit(sequence)
        try:
            data = insist(lambda: self._system.read(path), self._layout.root, self._note)
        except StoreWriteError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise CheckpointNotFoundError(
                    f"{self._layout.root} has no checkpoint with the sequence number {sequence}."
                ) from None
            raise CheckpointCorruptError(f"{path} cannot be read: {error.__cause__}.") from error
        manifest = decode(data, str(path))
        if manifest.commit.sequence != sequence:
            raise CheckpointCorruptError(f"{path} is a copy of checkpoint {manifest.commit.sequence}.")
        return manifest

    def get(self, sequence: int) -> Commit:
        """Return a commit; raises what :meth:`read` raises."""
        commit = self._known.get(sequence)
        if commit is None:
            commit = self._known[sequence] = self.read(sequence).commit
        return commit

    def newest(self) -> tuple[Commit, Contents] | None:
        """Return the newest commit that can be read, and its contents; None if there is none."""
        for sequence in reversed(self._layout.commits()):
            if self._newest and self._newest[0].sequence == sequence:
                return self._newest
            try:
                manifest = self.read(sequence)
                return manifest.commit, manifest.contents()
            except (CheckpointCorruptError, CheckpointNotFoundError, StoreVersionError):
                continue
        return None

    def add(self, commit: Commit, contents: Contents) -> None:
        """Remember a commit that was just made."""
        self._known[commit.sequence] = commit
        self._newest = commit, contents

    def forget(self, sequence: int) -> None:
        """Forget a commit that is no longer there."""
        self._known.pop(sequence, None)
