"""The one place where the store touches the system: each method is one operation, and a test may break any of them."""

import mmap
import os
from pathlib import Path

_CLOSED_ON_EXEC = os.O_CLOEXEC | os.O_NOFOLLOW


class System:
    """The operations of the operating system that a store uses.

    Every method raises what ``os`` raises. A link is never followed at the last part of a path.
    """

    def open(self, path: Path, flags: int) -> int:
        """Open a file or a folder; return a descriptor."""
        return os.open(path, flags | _CLOSED_ON_EXEC, 0o666)

    def write(self, descriptor: int, data: memoryview) -> int:
        """Write some of the bytes at the descriptor's position; return how many."""
        return os.write(descriptor, data)

    def fsync(self, descriptor: int) -> None:
        """Make what was written to a file, or the names in a folder, durable."""
        os.fsync(descriptor)

    def close(self, descriptor: int) -> None:
        """Close a descriptor."""
        os.close(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        """Give a file another name, in place of what had that name."""
        source.replace(target)

    def unlink(self, path: Path) -> None:
        """Remove a file's name."""
        path.unlink()

    def mkdir(self, path: Path) -> None:
        """Make a folder."""
        path.mkdir()

    def read(self, path: Path) -> bytes:
        """Return a whole file."""
        with open(os.open(path, os.O_RDONLY | _CLOSED_ON_EXEC), "rb") as file:  # noqa: PTH123  # a descriptor
            return file.read()

    def read_into(self, descriptor: int, buffer: memoryview, offset: int) -> int:
        """Fill a buffer from a position in an open file; return how many bytes there were."""
        return os.preadv(descriptor, [buffer], offset)

    def map(self, path: Path) -> mmap.mmap | bytes:
        """Map a whole file, copy on write: what is written to the map never reaches the file.

        The map stays whole when the file is replaced or removed.
        """
        descriptor = os.open(path, os.O_RDONLY | _CLOSED_ON_EXEC)
        try:
            if os.fstat(descriptor).st_size == 0:
                return b""
            return mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY)
        finally:
            os.close(descriptor)

    def size(self, path: Path) -> int:
        """Return a regular file's size in bytes; -1 for anything else, also a link."""
        found = path.lstat()
        return found.st_size if (found.st_mode & 0o170000) == 0o100000 else -1

    def names(self, folder: Path) -> list[str]:
        """List a folder, sorted; an absent one is empty."""
        try:
            return sorted(os.listdir(folder))  # noqa: PTH208  # names, not paths
        except FileNotFoundError:
            return []
