"""Runs inside the training process: records it, and cuts it off where it was told to."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from bitproof.prove.orders import WRITES, Orders, state_keys
from bitproof.prove.process import Reached
from bitproof.prove.writers import watch_writers
from bitproof.trail.attach import attach_for_life
from bitproof.trail.recorder import Recorder
from bitproof.trail.settings import Settings


def attach(settings: Mapping[str, Any]) -> None:
    """Attach the recorder and carry out the orders."""
    recorder = attach_for_life(Settings(Path(settings["trail"]), settings["leg"], settings["every"]))
    orders = msgspec.convert(settings["orders"], Orders)
    agent = Agent(recorder, orders)
    recorder.on_boundary = agent.boundary
    recorder.on_work = agent.work_begins
    recorder.on_first_state = agent.first_state
    if orders.outputs and os.environ.get("RANK", "0") == "0":
        watch_writers([Path(folder) for folder in orders.outputs], orders.write, agent.seen, agent.torn)


class Agent:
    """Carries out orders in one process."""

    def __init__(self, recorder: Recorder, orders: Orders) -> None:
        self._recorder = recorder
        self._orders = orders
        self._offset = 0
        self._done = False

    def first_state(self, roots: Mapping[str, int]) -> None:
        """Find out, before the first update, which step of the run this leg starts after."""
        if self._orders.states is None:
            return
        states = msgspec.json.decode(Path(self._orders.states).read_bytes(), type=dict[str, list[int]])
        found = (s for key in state_keys(roots) for s in reversed(states.get(key, [])) if s <= self._orders.not_after)
        self._offset = next(found, self._orders.checkpoint)

    def work_begins(self, step: int) -> None:
        """Stop before the work of the step after the last one begins."""
        if self._orders.stop_after is not None and step + self._offset > self._orders.stop_after:
            self._recorder.finish("stopped")
            self._say("stop", step, 0)
            self._wait()

    def boundary(self, step: int, micro: int, updates: int) -> None:
        """Cut off after a backward pass or an update, if it is the one."""
        orders, at = self._orders, step + self._offset
        if orders.step is None or self._done or self._rank() != orders.rank:
            return
        if orders.micro:
            here = (at, micro) == (orders.step, orders.micro)
        else:
            here = micro == 0 and at == orders.step and updates >= orders.updates
        # Where the legs count differently than the reference, being late is better than never.
        if here or at > orders.step:
            self._done = True
            self._say("fault", at, micro)
            self._wait()

    def seen(self, path: Path) -> None:
        """List a file that is written, for the reference's count."""
        with os.fdopen(
            os.open(Path(self._orders.control) / WRITES, os.O_CREAT | os.O_APPEND | os.O_WRONLY), "ab"
        ) as file:
            file.write(os.fsencode(path) + b"\n")

    def torn(self, path: Path) -> None:
        """Report that a file is half written, and wait for the end."""
        self._done = True
        self._say("fault", self._recorder.step + self._offset, 0, str(path))
        self._wait()

    def _rank(self) -> int:
        return int(os.environ.get("RANK", "0"))

    def _say(self, kind: Any, step: int, micro: int, path: str | None = None) -> None:
        world = int(os.environ.get("WORLD_SIZE", "1"))
        control = Path(self._orders.control)
        temporary = control / f"saying-{os.getpid()}"
        temporary.write_bytes(msgspec.json.encode(Reached(kind, self._rank(), world, step, micro, path)))
        temporary.replace(control / f"reached-{os.getpid()}.json")

    def _wait(self) -> None:
        go = Path(self._orders.control) / "go"
        while not (self._orders.patient and go.exists()):
            time.sleep(0.01)
