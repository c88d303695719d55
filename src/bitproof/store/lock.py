"""One writer at a time; the second is told who the first is."""

import fcntl
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from bitproof.errors import StoreLockedError
from bitproof.store.atomic import TEMPORARY, insist, write_atomic
from bitproof.store.system import System

_held: dict[tuple[int, int], "Lock"] = {}  # by device and inode: the kernel's lock is the process's, not the object's
_guard = threading.Lock()


class Holder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who writes to a store: process id, host name, and the UTC time at which it began."""

    pid: int
    host: str
    since: str

    def __str__(self) -> str:
        """Say it in words."""
        return f"process {self.pid} on {self.host} since {self.since}"


class Lock:
    """The right to write to one store, held by one object of one process.

    It is a POSIX record lock: the kernel frees it however the process ends, and, unlike ``flock``, forked loader
    workers that outlive the process do not keep it. Closing any descriptor of the file would free it too, so the
    file is opened nowhere else, and who holds it is written beside it.
    """

    def __init__(self, folder: Path, system: System, note: Callable[[str], None]) -> None:
        self._path, self._told = folder / "lock", folder / "writer.json"
        self._system, self._note = system, note
        self._descriptor: int | None = None
        self._process = 0
        self._depth = 0

    @property
    def held(self) -> bool:
        """Whether this object holds it, in this process (a forked child does not)."""
        return self._descriptor is not None and self._process == os.getpid()

    def acquire(self) -> None:
        """Take it, or go on holding it.

        Raises:
            StoreLockedError: another writer holds it; the message names it.
        """
        if self.held:
            return
        with _guard:
            with suppress(FileNotFoundError):
                owner = _held.get(_identity(self._path.stat()))
                if owner is not None and owner.held:
                    raise StoreLockedError(self._refusal())
            descriptor = insist(
                lambda: self._system.open(self._path, os.O_RDWR | os.O_CREAT), self._path.parent, self._note
            )
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):
                os.close(descriptor)
                raise StoreLockedError(self._refusal()) from None
            self._descriptor, self._process = descriptor, os.getpid()
            _held[_identity(os.fstat(descriptor))] = self
        try:
            self._tell()
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Give it back; nothing happens if it is not held."""
        if not self.held:
            return
        with suppress(OSError):
            self._system.unlink(self._told)
        with _guard:
            descriptor, self._descriptor = self._descriptor, None
            for key in [key for key, owner in _held.items() if owner is self]:
                del _held[key]
            if descriptor is not None:
                os.close(descriptor)

    @contextmanager
    def briefly(self) -> Iterator[bool]:
        """Hold it for a block, if it is free; the block is told whether it is held."""
        before = self.held
        try:
            self.acquire()
        except (StoreLockedError, OSError):
            yield False
            return
        try:
            yield True
        finally:
            if not before:
                self.release()

    def holder(self) -> Holder | None:
        """Return who last took it and did not give it back; None if nobody did, or that cannot be read."""
        try:
            return msgspec.json.decode(self._system.read(self._told), type=Holder)
        except (OSError, msgspec.MsgspecError):
            return None

    def _refusal(self) -> str:
        holder = self.holder()
        who = str(holder) if holder else "another process (it did not say which)"
        return f"{self._path.parent} is being written by {who}. Stop it first, or use another folder."

    def _tell(self) -> None:
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        data = msgspec.json.encode(Holder(os.getpid(), socket.gethostname(), since))
        write_atomic(
            self._system,
            self._told.with_name(f"{TEMPORARY}writer"),
            lambda _: [memoryview(data)],
            lambda: self._told,
            self._note,
        )


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino
