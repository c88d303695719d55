"""XXH3-128 of many pieces at once, on threads where that pays."""

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Self

from xxhash import xxh3_128, xxh3_128_hexdigest

from bitproof.store.system import System

_WORTH_THREADS = 4 << 20
_CHUNK = 1 << 20


class Hasher:
    """Digest pieces on two threads (both xxhash and reading free the interpreter's lock), or at once for a few bytes.

    The threads are its own: a ThreadPoolExecutor takes no work once the interpreter is ending, and a save in the
    background may have to be finished then.
    """

    def __init__(self, total: int) -> None:
        self._jobs: SimpleQueue[tuple[Future[str], Callable[..., str], tuple[Any, ...]] | None] = SimpleQueue()
        self._stopped = False
        count = min(2, os.cpu_count() or 1) if total >= _WORTH_THREADS else 0
        self._threads = [threading.Thread(target=self._run, name="bitproof-hash", daemon=True) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped = True
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def digest(self, data: memoryview) -> "Future[str]":
        """Digest bytes in memory."""
        return self._do(xxh3_128_hexdigest, data)

    def digest_file(self, system: System, descriptor: int, offset: int, size: int) -> "Future[str]":
        """Digest ``size`` bytes of an open file, read back from it."""
        return self._do(_digest_file, system, descriptor, offset, size)

    def _do(self, work: Callable[..., str], *arguments: Any) -> "Future[str]":
        future: Future[str] = Future()
        if self._threads:
            self._jobs.put((future, work, arguments))
        else:
            _finish(future, work, arguments)
        return future

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            if not self._stopped:
                _finish(*job)


def _finish(future: "Future[str]", work: Callable[..., str], arguments: tuple[Any, ...]) -> None:
    try:
        future.set_result(work(*arguments))
    except BaseException as error:  # noqa: BLE001  # raised where the result is asked for
        future.set_exception(error)


def _digest_file(system: System, descriptor: int, offset: int, size: int) -> str:
    digest = xxh3_128()
    buffer = memoryview(bytearray(min(size, _CHUNK)))
    done = 0
    while done < size:
        count = system.read_into(descriptor, buffer[: size - done], offset + done)
        if count == 0:
            break
        digest.update(buffer[:count])
        done += count
    return digest.hexdigest()
