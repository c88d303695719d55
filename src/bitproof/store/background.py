"""Saving behind the training loop: copy in the loop, write on a thread."""

import atexit
import sys
import threading
import traceback
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Literal, Self

import torch

from bitproof.store.facts import plain
from bitproof.store.manifest import Commit
from bitproof.store.retention import Keep
from bitproof.store.store import Store


class BackgroundSaver:
    """Save checkpoints while the loop goes on.

    :meth:`save` copies every tensor into buffers that nobody else has, before it returns; the thread that writes
    sees these alone, so that nothing that the loop does later can be in the checkpoint. There is one set of buffers,
    used again by each save: memory is bounded by one copy of the state, and one save is in flight at a time.

    Args:
        store: where to; it may be read meanwhile.
        keep: what is kept of older checkpoints; None keeps all.
        busy: what a save does while another is in flight: ``"wait"`` for it, or be skipped (``"skip"``).

    An error of the thread is raised by the next :meth:`save`, :meth:`check`, :meth:`wait` or :meth:`close`. If the
    program ends without any of these, it is printed; a save in flight is finished first.
    """

    def __init__(self, store: Store, *, keep: Keep | None = None, busy: Literal["wait", "skip"] = "wait") -> None:
        self._store, self._keep, self._busy = store, keep, busy
        self._buffers: dict[str, torch.Tensor] = {}
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._last: Commit | None = None
        atexit.register(self._at_exit)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        self._join()
        if self._error is not None:  # the loop's own error goes on; this one must not be lost beside it
            error.add_note(f"And the last save in the background had failed: {self._error!r}")
            self._error = None
        self.close()

    @property
    def last(self) -> Commit | None:
        """The last commit that was made; one in flight is not."""
        return self._last

    @property
    def busy(self) -> bool:
        """Whether a save is in flight."""
        return self._thread is not None and self._thread.is_alive()

    def save(
        self,
        document: bytes,
        tensors: Mapping[str, torch.Tensor],
        *,
        step: int,
        facts: Mapping[str, Any] | None = None,
    ) -> bool:
        """Take a snapshot and begin to save it.

        Args:
            document: any bytes.
            tensors: strided, any dtype, shape and device; they may change as soon as this returns.
            step: the training step.
            facts: what JSON can hold; copied.

        Returns:
            False if it was skipped, another being in flight.

        Raises:
            Exception: what an earlier save raised.
        """
        if self.busy and self._busy == "skip":
            self.check()
            return False
        self.wait()
        noted = plain(facts or {})
        snapshot = self._snapshot(tensors)
        self._thread = threading.Thread(
            target=self._write, args=(bytes(document), snapshot, step, noted), name="bitproof-save"
        )
        self._thread.start()
        return True

    def check(self) -> None:
        """Raise what an earlier save raised, if it did; never wait."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def wait(self) -> None:
        """Wait until nothing is in flight, and raise what it raised."""
        self._join()
        self.check()

    def wait_quietly(self) -> None:
        """Wait until nothing is in flight; what it raised is kept for the next :meth:`check`."""
        self._join()

    def close(self) -> None:
        """Wait, free the buffers, and raise what an earlier save raised; the store stays open."""
        self._join()
        self._buffers.clear()
        atexit.unregister(self._at_exit)
        self.check()

    def _snapshot(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        fresh: dict[str, torch.Tensor] = {}
        devices = set()
        with torch.no_grad():
            for name, tensor in tensors.items():
                source = tensor.detach()
                buffer = self._buffers.get(name)
                if buffer is None or buffer.shape != source.shape or buffer.dtype != source.dtype:
                    pinned = source.device.type == "cuda"
                    buffer = torch.empty(source.shape, dtype=source.dtype, device="cpu", pin_memory=pinned)
                buffer.copy_(source, non_blocking=source.device.type == "cuda")
                if source.device.type == "cuda":
                    devices.add(source.device)
                fresh[name] = buffer
        for device in devices:
            torch.cuda.current_stream(device).synchronize()
        self._buffers = fresh
        return fresh

    def _write(self, document: bytes, tensors: dict[str, torch.Tensor], step: int, facts: dict[str, Any]) -> None:
        try:
            self._last = self._store.save(document, tensors, step=step, facts=facts, keep=self._keep)
        except BaseException as error:  # noqa: BLE001  # raised in the loop by check()
            self._error = error

    def _join(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _at_exit(self) -> None:
        self._join()
        if self._error is not None:
            print("bitproof: the last save in the background failed, and nothing asked for it:", file=sys.stderr)  # noqa: T201
            traceback.print_exception(self._error)
