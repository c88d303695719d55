"""Runs inside the training process: records it, and cuts it off where it was told to."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from bitproof.prove.orders import STEPS_AFTER_SIGNAL, Orders, Touched, Writer, as_text, note_touched, state_keys
from bitproof.prove.process import Reached, ReachedKind, answer
from bitproof.prove.writers import watch_files
from bitproof.trail.attach import attach_for_life
from bitproof.trail.launch import make_deterministic
from bitproof.trail.recorder import Recorder
from bitproof.trail.settings import Settings
from bitproof.trail.site import user_line


def attach(settings: Mapping[str, Any]) -> Recorder:
    """Attach the recorder and carry out the orders."""
    orders = msgspec.convert(settings["orders"], Orders)
    agent = Agent(orders)
    if orders.outputs and os.environ.get("RANK", "0") == "0":
        # Before the recorder, so that its probe sees a file as saved only if it was.
        watch_files([Path(folder) for folder in orders.outputs], agent)
    recorder = attach_for_life(Settings(Path(settings["trail"]), settings["leg"], settings["every"]))
    make_deterministic(settings)
    agent.recorder = recorder
    recorder.on_boundary = agent.boundary
    recorder.on_work = agent.work_begins
    recorder.on_first_state = agent.first_state
    return recorder


class Agent:
    """Carries out orders in one process."""

    recorder: Recorder | None = None

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._offset = 0
        self._done = False
        self._signalled_at: int | None = None

    @property
    def tear(self) -> int | None:
        """The number of the file to leave half written."""
        return self._orders.write

    @property
    def watches_reads(self) -> bool:
        """Whether files that are read are to be noted."""
        return self._orders.watch_reads

    @property
    def _step(self) -> int:
        """Steps of the run that are complete."""
        return (self.recorder.step if self.recorder is not None else 0) + self._offset

    def first_state(self, roots: Mapping[str, int]) -> None:
        """Find out, before the first update, which step of the run this leg starts after."""
        if self._orders.states is None:
            return
        states = msgspec.json.decode(Path(self._orders.states).read_bytes(), type=dict[str, list[int]])
        found = (s for key in state_keys(roots) for s in reversed(states.get(key, [])) if s <= self._orders.not_after)
        self._offset = next(found, self._orders.checkpoint)
        if self._orders.stop_after is not None and self._offset >= self._orders.stop_after:
            self._say("stop", self._offset, 0)
            self._wait()

    def work_begins(self, step: int) -> None:
        """Stop before the work of the step after the last one begins."""
        if self._orders.stop_after is not None and step + self._offset > self._orders.stop_after:
            if self.recorder is not None:
                self.recorder.finish("stopped")
            self._say("stop", step, 0)
            self._wait()

    def boundary(self, step: int, micro: int, updates: int) -> None:
        """Cut off after a backward pass or an update, if it is the one."""
        orders, at = self._orders, step + self._offset
        if self._signalled_at is not None and not micro and at >= self._signalled_at + STEPS_AFTER_SIGNAL:
            self._say("survived", at, micro)
            self._wait()
        if orders.step is None or self._done or self._rank() != orders.rank:
            return
        if orders.micro:
            here = (at, micro) == (orders.step, orders.micro)
        else:
            here = micro == 0 and at == orders.step and updates >= orders.updates
        # Where the legs count differently than the reference, being late is better than never.
        if here or at > orders.step:
            self._cut(at, micro)

    def written(self, path: Path, writer: Writer) -> None:
        """Note a file that is about to be written."""
        touched = Touched(as_text(path), self._step, writer)
        note_touched(Path(self._orders.control), touched)

    def read(self, path: Path) -> None:
        """Note a file that is about to be read."""
        touched = Touched(as_text(path), self._step, where=user_line())
        note_touched(Path(self._orders.control), touched)

    def torn(self, path: Path) -> None:
        """Report that a file is half written, and wait for the end."""
        self._cut(self._step, 0, path)

    def _cut(self, step: int, micro: int, path: Path | None = None) -> None:
        self._done = True
        self._say("fault", step, micro, path)
        # A half-written file is what a sudden death leaves: no signal can be handled in the middle of it.
        self._wait(until_go=self._orders.patient and path is None)
        self._signalled_at = step

    def _rank(self) -> int:
        return int(os.environ.get("RANK", "0"))

    def _say(self, kind: ReachedKind, step: int, micro: int, path: Path | None = None) -> None:
        world = int(os.environ.get("WORLD_SIZE", "1"))
        torn = as_text(path) if path is not None else None
        said = Reached(kind, self._rank(), world, step, micro, self._offset, torn)
        answer(Path(self._orders.control), "reached", said)

    def _wait(self, *, until_go: bool = False) -> None:
        go = Path(self._orders.control) / "go"
        while not (until_go and go.exists()):
            time.sleep(0.01)
