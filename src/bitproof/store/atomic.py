"""How every file of a store is written: under a temporary name, durable, then renamed."""

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from bitproof.errors import StoreError, StoreFullError, StoreWriteError
from bitproof.store.system import System

TEMPORARY = ".tmp-"
"""How the name of a file begins that is being written; one that is found later was left by a crash."""

_T = TypeVar("_T")
_CHUNK = 16 << 20
_ATTEMPTS = 4
_FIRST_PAUSE = 0.02  # seconds; doubled at each attempt
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_TRANSIENT = {errno.EIO, errno.EXDEV, errno.EAGAIN, errno.ESTALE, errno.ETIMEDOUT}
_UNSUPPORTED = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}


def write_atomic(
    system: System,
    temporary: Path,
    parts: Callable[[int], Iterable[memoryview]],
    place: Callable[[], Path],
    note: Callable[[str], None],
) -> None:
    """Write a file so that it is there whole, or not at all, whatever happens.

    A transient error starts the file again from nothing: after a failed fsync the kernel may have dropped the pages
    that it could not write, and a second fsync would then report success (Rebello et al., USENIX ATC 2020).

    Args:
        system: where to write.
        temporary: the name while it is written; it is removed when that fails.
        parts: from the open descriptor to the bytes, one contiguous part after another; called once an attempt.
        place: the final name; called when the bytes are durable, the descriptor still open. What it raises stops
            the write.
        note: told what was tolerated.

    Raises:
        StoreFullError: no space left, or a quota or limit reached.
        StoreWriteError: any other refusal of the system, after some attempts if it may pass.
    """

    def once() -> None:
        try:
            _write_once(system, temporary, parts, place, note)
        except BaseException:
            with contextlib.suppress(OSError):
                system.unlink(temporary)
            raise

    insist(once, temporary.parent, note)


def insist(action: Callable[[], _T], folder: Path, note: Callable[[str], None]) -> _T:
    """Do something that the system may refuse; do it again, a few times, if the refusal may pass.

    Args:
        action: what is done; whole each time.
        folder: where, for messages.
        note: told of each refusal that passed.

    Raises:
        StoreFullError: no space left, or a quota or limit reached.
        StoreWriteError: any other refusal of the system.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return action()
        except OSError as error:
            if isinstance(error, StoreError):
                raise
            if error.errno not in _TRANSIENT or attempt == _ATTEMPTS:
                raise explain(error, folder, attempt) from error
            note(f"{folder}: {os.strerror(error.errno)}; done again (attempt {attempt + 1})")
            time.sleep(_FIRST_PAUSE * 2 ** (attempt - 1))
    raise AssertionError("the last attempt returns or raises")


def explain(error: OSError, folder: Path, attempts: int = 1) -> StoreFullError | StoreWriteError:
    """Return the error that tells a user what the system refused, and what still holds."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    kept = "The checkpoints committed before are untouched."
    if error.errno in _FULL:
        return StoreFullError(
            f"Could not write into {folder}: {reason}. {kept} Free some space, or keep fewer checkpoints, and save again."
        )
    tries = f" ({attempts} attempts)" if attempts > 1 else ""
    return StoreWriteError(f"Could not write into {folder}: {reason}{tries}. {kept}")


def sync_folder(system: System, folder: Path, note: Callable[[str], None]) -> None:
    """Make the names in a folder durable."""
    descriptor = system.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _sync(system, descriptor, folder, note)
    finally:
        system.close(descriptor)


def make_folder(system: System, folder: Path, note: Callable[[str], None]) -> None:
    """Make a folder durably; one that is there already is left as it is."""

    def once() -> None:
        with contextlib.suppress(FileExistsError):
            system.mkdir(folder)
        sync_folder(system, folder.parent, note)

    if not folder.is_dir():
        insist(once, folder.parent, note)


def _write_once(
    system: System,
    temporary: Path,
    parts: Callable[[int], Iterable[memoryview]],
    place: Callable[[], Path],
    note: Callable[[str], None],
) -> None:
    descriptor = system.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        for part in parts(descriptor):
            _write_all(system, descriptor, part)
        _sync(system, descriptor, temporary.parent, note)
        target = place()
    finally:
        system.close(descriptor)
    system.rename(temporary, target)
    sync_folder(system, target.parent, note)


def _write_all(system: System, descriptor: int, data: memoryview) -> None:
    done = 0
    while done < len(data):
        count = system.write(descriptor, data[done : done + _CHUNK])
        if count <= 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        done += count


def _sync(system: System, descriptor: int, where: Path, note: Callable[[str], None]) -> None:
    try:
        system.fsync(descriptor)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        note(f"{where}: this file system has no fsync ({os.strerror(error.errno)}); a power cut may lose a checkpoint")
