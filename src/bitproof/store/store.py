"""The store: a folder of checkpoints of which none is ever half there."""

import contextlib
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import torch

from bitproof.errors import (
    CheckpointCorruptError,
    CheckpointNotFoundError,
    StoreNotFoundError,
    StoreVersionError,
    UsageError,
)
from bitproof.store.atomic import TEMPORARY, explain, insist, make_folder, sync_folder, write_atomic
from bitproof.store.checkpoint import Checkpoint
from bitproof.store.commits import Commits
from bitproof.store.facts import plain
from bitproof.store.layout import Layout
from bitproof.store.lock import Lock
from bitproof.store.manifest import Commit, Contents, encode
from bitproof.store.pack import DOCUMENT, MappedPack, Piece, damage, in_file_order, piece_of, piece_of_document
from bitproof.store.retention import Keep, Retention
from bitproof.store.sweep import Sweeper, Swept
from bitproof.store.system import System
from bitproof.store.writer import Writer


class Problem(msgspec.Struct, frozen=True):
    """Something in a store that is not as it was written: which file, what is wrong, and what was done."""

    path: Path
    what: str

    def __str__(self) -> str:
        return f"{self.path}: {self.what}"


class Store:
    """Checkpoints in a folder, each a document (bytes) and named tensors.

    A save is durable, then verified, then committed, and only then are older ones pruned; whatever interrupts it,
    the last commit stays. Reading needs no lock and follows no link. Methods may be called from several threads.

    Args:
        path: the folder.
        create: make it if it is not there.
        system: where files are read and written; for tests.

    Attributes:
        lock: the right to write; taken by the first save and held until :meth:`close`.
        problems: what was found damaged so far.
        notes: what was tolerated so far, such as a file system without fsync.

    Raises:
        StoreNotFoundError: there is none, and ``create`` is false.

    Example:
        >>> with Store("runs/digits") as store:
        ...     commit = store.save(b"{}", {"weight": torch.zeros(3)}, step=1, facts={"val_loss": 0.5})
        ...     checkpoint = store.latest()
    """

    def __init__(self, path: str | os.PathLike[str], *, create: bool = True, system: System | None = None) -> None:
        self.path = Path(path).absolute()
        self._system = system or System()
        self._layout = Layout(self.path, self._system)
        self._mutex = threading.RLock()
        self._writer = Writer(self._system, self._layout, self._note)
        self._commits = Commits(self._system, self._layout, self._note)
        self._sweeper = Sweeper(self._system, self._layout, self._commits, self._note)
        self._swept = False
        self.problems: list[Problem] = []
        self.notes: list[str] = []
        if create:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise explain(error, self.path.parent) from error
            for folder in (self._layout.objects, self._layout.checkpoints):
                make_folder(self._system, folder, self._note)
        elif not self._layout.checkpoints.is_dir():
            raise StoreNotFoundError(f"There is no store of checkpoints at {self.path}.")
        self._layout.refuse_links(*self._layout.folders)
        self.lock = Lock(self.path, self._system, self._note)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give back the right to write; checkpoints that are open stay readable."""
        with self._mutex:
            self.lock.release()
            self._swept = False

    def save(
        self,
        document: bytes,
        tensors: Mapping[str, torch.Tensor],
        *,
        step: int,
        facts: Mapping[str, Any] | None = None,
        keep: Keep | None = None,
    ) -> Commit:
        """Commit a checkpoint, then prune.

        Tensors that the last checkpoint holds under the same name with the same bytes are not written again. The
        tensors must not change while this runs; if one does, nothing is committed. Those on a device are copied to the
        host first.

        Args:
            document: any bytes.
            tensors: strided, any shape and device; see :func:`bitproof.store.pack.piece_of`.
            step: the training step, 0 or more.
            facts: what JSON can hold, such as ``{"val_loss": 0.5}``.
            keep: what is kept of the others; None keeps all.

        Returns:
            The commit; it is durable.

        Raises:
            UsageError: an argument cannot be stored.
            StoreLockedError: another writer holds the store.
            StoreFullError, StoreWriteError: the system refused; what was committed before is untouched.
            TornSaveError: a tensor changed meanwhile.
        """
        noted = plain(facts or {})
        if step < 0:
            raise UsageError(f"Cannot save step {step}: steps are counted from 0.")
        pieces = [piece_of(name, tensor) for name, tensor in tensors.items()]
        pieces = in_file_order([*pieces, piece_of_document(document)])
        with self._mutex:
            self.lock.acquire()
            if not self._swept:
                insist(self._begin, self.path, self._note)
                self._swept = True
            try:
                commit = self._commit(pieces, list(tensors), step, noted)
            except BaseException:
                with contextlib.suppress(OSError):
                    self._sweeper.sweep()  # a pack without a commit is of no use, and may fill the disk
                raise
            if keep is not None:
                self.prune(keep)
            return commit

    def latest(self, *, verify: bool = True) -> Checkpoint | None:
        """Open the newest checkpoint that is as it was saved.

        One that is not is set aside into ``quarantine/`` (if nobody else holds the lock) and reported in
        :attr:`problems`; the next older one is tried.

        Args:
            verify: read every bit now. Otherwise the manifest, the sizes and the headers are verified now, and each
                tensor when it is read.

        Returns:
            The checkpoint, or None if the store never had one.

        Raises:
            CheckpointCorruptError: there are checkpoints, and none is as it was saved.
            StoreVersionError: the newest is of another version of the format; it is left where it is.
        """
        with self._mutex:
            self._layout.refuse_links(*self._layout.folders)
            commits = self._layout.commits()
            while commits:
                sequence = commits.pop()
                try:
                    checkpoint = self._open(sequence)
                    if verify:
                        checkpoint.verify()
                except CheckpointNotFoundError:
                    commits = self._layout.commits()  # another process pruned it, so there is a newer one
                except CheckpointCorruptError as error:
                    self.set_aside(sequence, str(error))
                else:
                    return checkpoint
            bad = len({*self._layout.commits(), *self._layout.quarantined()})
            if bad:
                raise CheckpointCorruptError(
                    f"None of the {bad} checkpoints in {self.path} is as it was saved: "
                    f"{self.problems[-1].what if self.problems else 'all were set aside before'} To start afresh, use "
                    f"another folder, or remove {self._layout.quarantine.name}/ with gc(quarantine=True)."
                )
            return None

    def checkpoints(self) -> list[Commit]:
        """List the commits, oldest first, without opening them; damaged ones are reported in :attr:`problems`."""
        with self._mutex:
            found = []
            for sequence in self._layout.commits():
                try:
                    found.append(self._commits.get(sequence))
                except CheckpointNotFoundError:
                    continue
                except (CheckpointCorruptError, StoreVersionError) as error:
                    self._report(self._layout.commit(sequence), str(error))
            return found

    def open(self, step: int | None = None, *, sequence: int | None = None) -> Checkpoint:
        """Open one checkpoint; each tensor is verified when it is read.

        Args:
            step: the newest one of this step.
            sequence: the one of this number, in place of ``step``.

        Raises:
            UsageError: neither or both are given.
            CheckpointNotFoundError: there is none.
            CheckpointCorruptError: its manifest, or a pack's size or header, is damaged.
            StoreVersionError: it is of another version of the format.
        """
        if (step is None) == (sequence is None):
            raise UsageError("Open a checkpoint by its step or by its sequence number: give one of them.")
        with self._mutex:
            if sequence is not None:
                return self._open(sequence)
            commits = self.checkpoints()
            for commit in reversed(commits):
                if commit.step == step:
                    return self._open(commit.sequence)
            steps = ", ".join(str(commit.step) for commit in commits[-10:]) or "none"
            raise CheckpointNotFoundError(
                f"{self.path} has no checkpoint of step {step}; the last steps it has: {steps}."
            )

    def verify(self) -> list[Problem]:
        """Read every bit of every checkpoint, and list what is not as it was written; nothing is changed."""
        with self._mutex:
            problems = []
            damaged = {}
            for path in self._layout.packs():
                what = damage(self._system, path)
                if what is not None:
                    damaged[path.stem] = what
                    problems.append(Problem(path, f"damaged: {what}"))
            for sequence in self._layout.commits():
                path = self._layout.commit(sequence)
                try:
                    checkpoint = self._open(sequence)
                    if any(pack.name in damaged for pack in checkpoint.commit.packs):
                        checkpoint.verify()
                except CheckpointNotFoundError:
                    continue
                except (CheckpointCorruptError, StoreVersionError) as error:
                    problems.append(Problem(path, str(error)))
            return problems

    def prune(self, keep: Retention) -> None:
        """Remove the checkpoints that are not kept: first the commits, then, when that is durable, what they alone need.

        What the system refuses to remove is noted in :attr:`notes`, and removed by a later sweep.

        Raises:
            StoreLockedError: another writer holds the store.
        """
        with self._mutex:
            self.lock.acquire()
            commits = self.checkpoints()
            kept = keep.kept(commits)
            doomed = [commit for commit in commits if commit.sequence not in kept]
            try:
                self._sweeper.remove(doomed)
            except OSError as error:
                self._note(f"{self.path}: older checkpoints could not be removed: {error.strerror}")

    def set_aside(self, sequence: int, what: str) -> None:
        """Move a commit that is not as it was saved into ``quarantine/``, unless another writer holds the store.

        Args:
            sequence: its number.
            what: what is wrong with it, for :attr:`problems`.
        """
        path = self._layout.commit(sequence)
        with self.lock.briefly() as held:
            if not held:
                self._report(path, what)
                return
            try:
                make_folder(self._system, self._layout.quarantine, self._note)
                self._system.rename(path, self._layout.free_in_quarantine(path.name))
                sync_folder(self._system, self._layout.quarantine, self._note)
                sync_folder(self._system, self._layout.checkpoints, self._note)
            except OSError as error:
                self._report(path, f"{what} It could not be set aside: {error.strerror}.")
            else:
                self._commits.forget(sequence)
                self._report(path, f"{what} It was set aside into {self._layout.quarantine.name}/.")

    def gc(self, *, quarantine: bool = False) -> Swept:
        """Remove what no checkpoint needs: files left by a crash, packs that nothing refers to.

        Args:
            quarantine: remove what was set aside, too.

        Raises:
            StoreLockedError: another writer holds the store.
        """
        with self._mutex:
            before = self.lock.held
            self.lock.acquire()
            try:
                if quarantine:
                    self._sweeper.clear_quarantine()
                return self._sweeper.sweep()
            except OSError as error:
                raise explain(error, self.path) from error
            finally:
                if not before:
                    self.lock.release()

    def _commit(self, pieces: list[Piece], names: list[str], step: int, facts: dict[str, Any]) -> Commit:
        packs, entries, written = self._writer.write(pieces, self._commits.newest())
        commit = Commit(
            sequence=self._commits.next_number(),
            step=step,
            saved_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            facts=facts,
            size=sum(len(piece.data) for piece in pieces),
            written=written,
            packs=packs,
        )
        placed = dict(zip((piece.name for piece in pieces), entries, strict=True))
        contents = Contents(placed[DOCUMENT], {name: placed[name] for name in names})
        data = encode(commit, contents)
        path = self._layout.commit(commit.sequence)
        write_atomic(
            self._system,
            path.with_name(f"{TEMPORARY}commit"),
            lambda _: [memoryview(data)],
            lambda: path,
            self._note,
        )
        self._commits.add(commit, contents)
        return commit

    def _open(self, sequence: int) -> Checkpoint:
        manifest = self._commits.read(sequence)
        contents = manifest.contents()
        packs = manifest.commit.packs
        try:
            mapped = [MappedPack(self._system, self._layout.pack(pack.name), pack) for pack in packs]
        except OSError as error:
            if not self._layout.commit(sequence).exists():
                raise CheckpointNotFoundError(
                    f"Checkpoint {sequence} in {self.path} was pruned while it was opened."
                ) from error
            raise CheckpointCorruptError(
                f"Checkpoint {sequence} in {self.path} needs {error.filename}, which cannot be read: {error.strerror}."
            ) from error
        return Checkpoint(manifest.commit, contents, mapped, lambda entry: self._writer.trust(packs[entry.pack], entry))

    def _begin(self) -> None:
        """Begin to write: remove what a crash left, and make sure of folders that one may have made and not fsynced."""
        self._sweeper.sweep()
        for folder in (self._layout.checkpoints, self._layout.objects, self.path):
            sync_folder(self._system, folder, self._note)

    def _report(self, path: Path, what: str) -> None:
        problem = Problem(path, what)
        if problem not in self.problems:
            self.problems.append(problem)

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)
