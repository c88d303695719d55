"""Break a store at every operation of the system: by a kill, by a power cut, by an error.

Each way is a :class:`~bitproof.store.system.System` to be given to a store. A *point* is one operation that is visible
from outside the process: open, write, fsync, rename, unlink, mkdir.
"""

import errno
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bitproof.store import System

Action = Callable[[System], object]
"""What is broken: it gets the system that its store is to use."""


class WatchedSystem(System):
    """Calls :meth:`before` ahead of every visible operation, and lists the operations in ``log``."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self._paths: dict[int, Path] = {}

    def before(self, operation: str, path: Path) -> None:
        """Be told of an operation that is about to happen; raise, or end the process, to break it."""

    def open(self, path: Path, flags: int) -> int:
        """Open a file or a folder."""
        if flags & os.O_CREAT:
            self._visible("open", path)
        descriptor = super().open(path, flags)
        self._paths[descriptor] = path
        return descriptor

    def write(self, descriptor: int, data: memoryview) -> int:
        """Write some of the bytes."""
        self._visible("write", self._paths[descriptor])
        return super().write(descriptor, data)

    def fsync(self, descriptor: int) -> None:
        """Make a file or a folder durable."""
        self._visible("fsync", self._paths[descriptor])
        super().fsync(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        """Give a file another name."""
        self._visible("rename", target)
        super().rename(source, target)

    def unlink(self, path: Path) -> None:
        """Remove a file's name."""
        self._visible("unlink", path)
        super().unlink(path)

    def mkdir(self, path: Path) -> None:
        """Make a folder."""
        self._visible("mkdir", path)
        super().mkdir(path)

    def _visible(self, operation: str, path: Path) -> None:
        self.log.append(f"{operation} {path.name}")
        self.before(operation, path)


class KillingSystem(WatchedSystem):
    """Kills its own process with SIGKILL right before the n-th visible operation, counted from 1.

    Args:
        at: *n*.
        torn: if that operation is a write, half of the bytes are written first.
    """

    def __init__(self, at: int, *, torn: bool = False) -> None:
        super().__init__()
        self._at, self._torn = at, torn

    def before(self, operation: str, path: Path) -> None:
        """Act ahead of an operation."""
        del path
        if len(self.log) == self._at and not (self._torn and operation == "write"):
            os.kill(os.getpid(), signal.SIGKILL)

    def write(self, descriptor: int, data: memoryview) -> int:
        """Write some of the bytes."""
        written = super().write(
            descriptor, data[: len(data) // 2] if self._torn and len(self.log) + 1 == self._at else data
        )
        if len(self.log) == self._at:
            os.kill(os.getpid(), signal.SIGKILL)
        return written


class FailingSystem(WatchedSystem):
    """Raises an ``OSError`` at chosen operations.

    Args:
        operation: its name, such as ``"write"``.
        code: of the error, such as ``errno.EIO``.
        times: how many operations fail.
        after: how many of that name succeed before.
    """

    def __init__(self, operation: str, code: int, *, times: int = 1 << 30, after: int = 0) -> None:
        super().__init__()
        self._operation, self._code, self._times, self._after = operation, code, times, after

    def before(self, operation: str, path: Path) -> None:
        """Act ahead of an operation."""
        if operation != self._operation:
            return
        if self._after:
            self._after -= 1
        elif self._times:
            self._times -= 1
            raise OSError(self._code, os.strerror(self._code), str(path))


class FullSystem(WatchedSystem):
    """A disk that is full after so many more bytes: the write that reaches the end is cut, the next one fails."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self._room = room

    def write(self, descriptor: int, data: memoryview) -> int:
        """Write some of the bytes."""
        if self._room == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = super().write(descriptor, data[: self._room])
        self._room -= written
        return written


class ShortWritingSystem(WatchedSystem):
    """Writes at most ``most`` bytes at a time, as the system may."""

    def __init__(self, most: int = 7) -> None:
        super().__init__()
        self._most = most

    def write(self, descriptor: int, data: memoryview) -> int:
        """Write some of the bytes."""
        return super().write(descriptor, data[: self._most])


def points(action: Action) -> list[str]:
    """Run the action to its end, and list the operations at which it can be broken."""
    system = WatchedSystem()
    action(system)
    return system.log


def kill_at(action: Action, at: int, *, torn: bool = False) -> None:
    """Run the action in a forked child that is killed right before its n-th operation.

    Raises:
        AssertionError: the child was not killed (the action has fewer operations, or failed).
    """
    child = os.fork()
    if child == 0:
        try:
            action(KillingSystem(at, torn=torn))
        except BaseException:  # noqa: BLE001  # the child must never return into the test
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(3)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    assert killed, f"the child was to be killed at operation {at}, and ended with status {status}"


@dataclass
class _File:
    data: bytearray = field(default_factory=bytearray)
    durable: bytes | None = None  # what fsync made sure of


@dataclass
class _Names:
    files: dict[Path, _File] = field(default_factory=dict)
    folders: set[Path] = field(default_factory=set)

    def copy(self) -> "_Names":
        return _Names(dict(self.files), set(self.folders))


class PowerCutSystem(WatchedSystem):
    """Keeps what would be on the disk if the power failed right before each operation.

    Two disks are kept for each point, the extremes of what a file system may do: one that lost every name whose folder
    was not fsynced, and one that kept every name; both lost all data that was not fsynced.

    Args:
        root: the folder that the action writes to; what is in it now is taken as durable.
    """

    def __init__(self, root: Path) -> None:
        super().__init__()
        self._root = root
        self._now = _Names(folders={path for path in root.rglob("*") if path.is_dir()} | {root})
        for path in root.rglob("*"):
            if path.is_file():
                data = path.read_bytes()
                self._now.files[path] = _File(bytearray(data), data)
        self._disk = self._now.copy()
        self._open: dict[int, _File] = {}
        self.disks: list[tuple[str, dict[Path, bytes]]] = []

    def before(self, operation: str, path: Path) -> None:
        """Act ahead of an operation."""
        self._keep(f"{len(self.log)}: before {operation} {path.name}")

    def end(self) -> None:
        """Keep the disks after the last operation."""
        self._keep("at the end")

    def open(self, path: Path, flags: int) -> int:
        """Open a file or a folder."""
        descriptor = super().open(path, flags)
        if flags & os.O_CREAT:
            if path not in self._now.files or flags & os.O_TRUNC:
                self._now.files[path] = _File()
            self._open[descriptor] = self._now.files[path]
        return descriptor

    def write(self, descriptor: int, data: memoryview) -> int:
        """Write some of the bytes."""
        written = super().write(descriptor, data)
        self._open[descriptor].data += data[:written]
        return written

    def fsync(self, descriptor: int) -> None:
        """Make a file or a folder durable."""
        super().fsync(descriptor)
        folder = self._paths[descriptor]
        if folder not in self._now.folders:
            self._open[descriptor].durable = bytes(self._open[descriptor].data)
            return
        kept = {path: file for path, file in self._disk.files.items() if path.parent != folder}
        self._disk.files = kept | {path: file for path, file in self._now.files.items() if path.parent == folder}
        others = {path for path in self._disk.folders if path.parent != folder}
        self._disk.folders = others | {path for path in self._now.folders if path.parent == folder}

    def rename(self, source: Path, target: Path) -> None:
        """Give a file another name."""
        super().rename(source, target)
        self._now.files[target] = self._now.files.pop(source)

    def unlink(self, path: Path) -> None:
        """Remove a file's name."""
        super().unlink(path)
        del self._now.files[path]

    def mkdir(self, path: Path) -> None:
        """Make a folder."""
        super().mkdir(path)
        self._now.folders.add(path)

    def close(self, descriptor: int) -> None:
        """Close a descriptor."""
        super().close(descriptor)
        self._open.pop(descriptor, None)

    def restore(self, disk: dict[Path, bytes], folder: Path) -> None:
        """Write one of the disks out as a folder."""
        for path, data in disk.items():
            target = folder / path.relative_to(self._root)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)

    def _keep(self, point: str) -> None:
        for kind, names in (("names lost", self._disk), ("names kept", self._now)):
            self.disks.append((f"{point}, {kind}", dict(self._readable(names))))

    def _readable(self, names: _Names) -> Iterator[tuple[Path, bytes]]:
        for path, file in names.files.items():
            reached = path.parent
            while reached in names.folders and reached != self._root:
                reached = reached.parent
            if reached == self._root:
                yield path, file.durable or b""
