"""The journal: steps and events, turned into what is stored and written to the leg's file."""

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from bitproof.fingerprint import combine, digest_bytes, digest_text
from bitproof.trail.file import LegWriter
from bitproof.trail.looking import Entries, Seen
from bitproof.trail.records import Event, Layout, MicroHead, StepDetail, StepHead, TensorRow, pack_digests
from bitproof.trail.settings import Settings
from bitproof.trail.window import Window

KEEP_LATEST = 1_000
"""Steps whose details are always kept."""
_FORGET_EVERY = 256
_EARLY_EVENTS = 10_000
_NO_SKETCH = bytes(24)
_SKETCHED = frozenset({"weights", "gradients", "optimizer", "buffers", "hyperparameters", "scaler", "saved"})


class Journal:
    """Writes the leg's file, which is opened at the first step.

    Args:
        settings: where and how to record.
        identify: gives this process's (rank, world size).
        describe: gives the facts that are stored with the leg, the environment among them.
    """

    def __init__(
        self, settings: Settings, identify: Callable[[], tuple[int, int]], describe: Callable[[], dict[str, Any]]
    ) -> None:
        self._settings = settings
        self._identify = identify
        self._describe = describe
        self._writer: LegWriter | None = None
        self._layouts: dict[Layout, tuple[int, int]] = {}
        self._layout_count = 0
        self._lock = threading.RLock()
        """Held while writing: a save in the background, or the garbage collector, may come in between."""
        self.on_write_error: Callable[[Exception], None] | None = None
        """Told once if the system refuses a write; without it, that is raised."""
        self.early: deque[Event] = deque(maxlen=_EARLY_EVENTS)
        """Events before the first step."""
        self._states: list[tuple[str, int, bytes]] = []
        self._started = time.monotonic()

    @property
    def is_open(self) -> bool:
        """Whether there is a file to write to."""
        return self._writer is not None

    def keep_state(self, name: str, digest: int, state: bytes) -> None:
        """Keep a generator's state, to be written with the next step."""
        self._states.append((name, digest, state))

    def event(self, event: Event) -> None:
        """Write an event, or keep it until there is a file."""
        with self._lock:
            if self._writer is None:
                self.early.append(event)
            else:
                self._writer.events([event])

    def row(self, facet: str, entries: Entries) -> tuple[TensorRow, int]:
        """Return a facet's row and its root, storing its layout if it is a new one.

        The root is a digest over the layout's names and kinds and all digests.
        """
        names = sorted(entries)
        found = [entries[name] for name in names]
        layout = Layout(facet, tuple(names), tuple([entry[0] for entry in found]))
        known = self._layouts.get(layout)
        if known is None:
            root = digest_text("\n".join((*layout.names, *layout.kinds)))
            with self._lock:
                self._layout_count = number = self._layout_count + 1
                known = self._layouts.setdefault(layout, (number, root))
                if self._writer is not None and known[0] == number:
                    self._writer.layout(number, layout)
        digests = pack_digests([entry[1] for entry in found])
        sketches = b"".join([entry[2] or _NO_SKETCH for entry in found]) if facet in _SKETCHED else b""
        return TensorRow(known[0], digests, sketches), digest_bytes(known[1].to_bytes(8, "little") + digests)

    def roots(self, window: Window) -> dict[str, int]:
        """Return the root of each facet of a step."""
        return {facet: self.row(facet, entries)[1] for facet, entries in window.facets.items()}

    def write(self, window: Window) -> None:
        """Write a step, in place of what was written of it before."""
        head, detail = self._records(window)
        writer = self._open()
        writer.step(head, detail)
        if head.step % _FORGET_EVERY == 0 and head.step > KEEP_LATEST + _FORGET_EVERY:
            last = head.step - KEEP_LATEST
            writer.forget_details(last - 2 * _FORGET_EVERY, last, self._settings.every)

    def write_final(self, window: Window) -> None:
        """Write the state after the last step, if there is a file."""
        head, detail = self._records(window)
        if self._writer is not None:
            self._writer.final(head, detail)

    def _records(self, window: Window) -> tuple[StepHead, StepDetail]:
        rows, roots = [], {}
        for facet, entries in window.facets.items():
            row, roots[facet] = self.row(facet, entries)
            rows.append(row)
        micros, batches, losses, buffers = [], [], [], []
        for micro in window.micros:
            seen = micro.batch()
            batch, batch_root = self._row_of(seen, "batch")
            loss, loss_root = self._row_of(micro.losses, "loss")
            moved, moved_root = self.row("buffers", micro.buffers) if micro.rng else (None, None)
            batches.append(batch)
            losses.append(loss)
            buffers.append(moved)
            micros.append(
                MicroHead(
                    batch=batch_root if seen else None,
                    samples=pack_digests(next((s.samples for s in seen if s.samples), [])),
                    indices=[i for used in micro.used for i in used.indices or []] or micro.indices,
                    loss=loss_root if micro.losses else None,
                    loss_value=micro.loss_value,
                    loader=micro.loader,
                    buffers=moved_root,
                    rng=micro.rng,
                )
            )
        if any(m.batch is not None for m in micros):
            roots["batch"] = combine(m.batch or 0 for m in micros)
        if micros:
            roots["loss"] = combine(m.loss or 0 for m in micros)
        head = StepHead(
            step=window.number,
            roots=roots,
            micros=micros,
            rng_start=window.rng_start or {},
            rng_forward=window.rng_forward or {},
            updates=window.updates,
            skipped=window.skipped,
            seconds=time.monotonic() - self._started,
            rate=window.rate if window.rate is None or math.isfinite(window.rate) else None,
        )
        # A step is written again when a further update joins it: with the states it was written with before.
        states, self._states = self._states, []
        window.states += states
        return head, StepDetail(rows, batches, losses, buffers, window.states)

    def _row_of(self, seen: list[Seen], facet: str) -> tuple[TensorRow, int]:
        return self.row(facet, {s.name: (s.kind, s.digest, b"") for s in seen})

    def _open(self) -> LegWriter:
        if self._writer is None:
            rank, world = self._identify()
            facts = self._describe() | {"rank": rank, "world_size": world}
            with self._lock:
                writer = LegWriter(self._settings.trail, self._settings.leg, rank, facts)
                writer.begin()
                for layout, (number, _) in self._layouts.items():
                    writer.layout(number, layout)
                writer.events(list(self.early))
                writer.commit()
                self.early.clear()
                writer.on_error = self.on_write_error
                self._writer = writer
        return self._writer

    def close(self) -> None:
        """Close the file, if there is one."""
        with self._lock:
            if self._writer is not None:
                self._writer.close()
                self._writer = None

    def after_fork(self) -> None:
        """Start anew in a forked child, leaving the parent's file alone."""
        if self._writer is not None:
            self._writer.abandon()
        self._writer = None
        self._states.clear()
        self._lock = threading.RLock()  # another thread of the parent may have held it
        self._layouts.clear()
        self.early.clear()
        self._started = time.monotonic()
