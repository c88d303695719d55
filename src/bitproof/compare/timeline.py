"""Legs on the clock of the whole run."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

from bitproof.trail.reader import Detail, Leg
from bitproof.trail.records import Event, StepHead, Tensors

Saves = dict[int, dict[int, list[Callable[[], Tensors]]]]
"""Trees given to a writer: by step, then micro-step, in order; each joined with its names when it is asked for."""


@dataclass(frozen=True)
class Placed:
    """A leg whose first step is step ``offset + 1`` of the run.

    Args:
        leg: the leg as read.
        offset: steps of the run that were complete before it.
        micro: backward passes of its first step that an earlier leg took (an open accumulation window).
    """

    leg: Leg
    offset: int = 0
    micro: int = 0

    @property
    def first(self) -> int:
        """The run's number of this leg's first step."""
        return self.offset + 1

    @property
    def last(self) -> int:
        """The run's number of this leg's last complete step."""
        return self.offset + len(self.leg.steps)

    def head(self, step: int) -> StepHead | None:
        """Return a step by its number in the run; the one after the last is the final state, if it was seen."""
        local = step - self.offset
        if 1 <= local <= len(self.leg.steps):
            return self.leg.steps[local - 1]
        return self.leg.final if local == len(self.leg.steps) + 1 else None

    def detail(self, step: int) -> Detail | None:
        """Return a step's tensors by its number in the run."""
        local = step - self.offset
        if local == len(self.leg.steps) + 1:
            return self.leg.final_detail()
        return self.leg.detail(local)

    def events(self, kind: str | None = None) -> Iterator[tuple[int, Event]]:
        """Yield (steps of the run completed by then, event)."""
        for event in self.leg.events:
            if kind is None or event.kind == kind:
                yield event.step + self.offset, event

    @cached_property
    def saves(self) -> "Saves":
        """What was given to a writer, by step and micro-step."""
        found: Saves = {}
        for step, event in self.events("file-saved"):
            if event.saved is not None:
                tensors = functools.partial(self.leg.tensors, event.saved)
                found.setdefault(step, {}).setdefault(event.micro, []).append(tensors)
        return found

    def generator_state(self, name: str, digest: int) -> bytes | None:
        """Return a generator's state by digest."""
        return self.leg.generator_state(name, digest)


@dataclass(frozen=True)
class Timeline:
    """A run's legs for one rank, in order; where two hold a step, the later one counts."""

    legs: tuple[Placed, ...]

    @property
    def first(self) -> int:
        """Always 1: a run starts there."""
        return 1

    @cached_property
    def last(self) -> int:
        """The last complete step."""
        return self.legs[-1].last

    def head(self, step: int) -> StepHead | None:
        """Return a step by its number; the one after the last is the final state, if it was seen."""
        return self._holder(step).head(step)

    def detail(self, step: int) -> Detail | None:
        """Return a step's tensors by its number."""
        return self._holder(step).detail(step)

    def events(self, kind: str | None = None) -> Iterator[tuple[int, Event]]:
        """Yield (steps completed by then, event), leg by leg."""
        for placed in self.legs:
            yield from placed.events(kind)

    @cached_property
    def saves(self) -> "Saves":
        """What was given to a writer, by step and micro-step; where two legs saved at one step, the later one counts."""
        return {step: saves for placed in self.legs for step, saves in placed.saves.items()}

    def generator_state(self, name: str, digest: int) -> bytes | None:
        """Return a generator's state by digest."""
        states = (placed.generator_state(name, digest) for placed in self.legs)
        return next((state for state in states if state is not None), None)

    @property
    def environment(self) -> dict[str, object]:
        """The environment of the first leg."""
        return self.legs[0].leg.environment

    def _holder(self, step: int) -> Placed:
        return next((p for p in reversed(self.legs) if p.first <= step), self.legs[0])


Side = Placed | Timeline
