"""The price, as plain data, and how it is worked out from timings."""

import statistics
from collections.abc import Mapping
from typing import Literal

import msgspec

FORMAT = 1

TIMED = "timed"
FAILED = "failed"
"""Beginnings of the names of the files that a training process leaves in the control folder."""

Reason = Literal["command-failed", "no-steps", "timed-out"]


class Window(msgspec.Struct, frozen=True):
    """Which steps of a leg count: ``steps`` of them, after ``warm_up`` ones."""

    warm_up: int
    steps: int


class Timing(msgspec.Struct, frozen=True):
    """What one process measured.

    Args:
        taken: steps that it took.
        steps: those that count.
        seconds: that these took.
        rank: of the process.
        threads: of torch, inside an operation.
        device: the GPU's name; None if CUDA had not started.
        torch: its version.
    """

    taken: int
    steps: int
    seconds: float
    rank: int
    threads: int
    device: str | None
    torch: str

    @property
    def per_second(self) -> float:
        """Steps a second."""
        return self.steps / self.seconds


class Failure(msgspec.Struct, frozen=True):
    """Why the command does not run with a setting: the operation that has no deterministic implementation, if that is it."""

    summary: str
    operation: str | None = None
    where: str | None = None


class Speed(msgspec.Struct, frozen=True, kw_only=True):
    """How fast the command is with a setting, a figure a round.

    Args:
        name: of the setting.
        does: what it sets.
        part: whether ``deterministic`` consists of it.
        steps_per_second: in each round.
        ratios: to the command without, in the same round; below 1 is slower.
        ratio: their median.
        failure: why there is no figure.
    """

    name: str
    does: str
    part: bool
    steps_per_second: list[float] = []
    ratios: list[float] = []
    ratio: float | None = None
    failure: Failure | None = None


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """What determinism costs on a command, as ``bitproof price --json`` prints it.

    Args:
        command: program and arguments.
        steps: that were timed in each leg.
        warm_up: steps before them.
        rounds: in each, every setting had one leg.
        machine: processor, GPU, threads and version of PyTorch that were measured.
        seconds: that the timed steps of a leg took without, at the median.
        without: steps a second of the command as it is, in each round.
        settings: the whole first, then each setting alone.
        costliest: the part of the whole that costs most; None where none was slower in every round.
        reason: why there is no price.
        message: what to do then.
        output: the last lines of a command that failed.
        folder: where the logs are.
    """

    format: int = FORMAT
    command: list[str]
    steps: int
    warm_up: int
    rounds: int
    machine: dict[str, str | int | None] = {}
    seconds: float | None = None
    without: list[float] = []
    settings: list[Speed] = []
    costliest: str | None = None
    reason: Reason | None = None
    message: str | None = None
    output: list[str] = []
    folder: str = ""


def speed(name: str, does: str, *, part: bool, timings: Mapping[int, Timing], without: Mapping[int, Timing]) -> Speed:
    """Put a setting's timings, by round, beside those of the same rounds without it."""
    figures = [timing.per_second for timing in timings.values()]
    ratios = [timing.per_second / without[number].per_second for number, timing in timings.items()]
    ratio = statistics.median(ratios) if ratios else None
    return Speed(name=name, does=does, part=part, steps_per_second=figures, ratios=ratios, ratio=ratio)


def costliest(settings: list[Speed]) -> str | None:
    """Return the part that costs most, of those that were slower in every round."""
    slower = [s for s in settings if s.part and s.ratios and max(s.ratios) < 1]
    return min(slower, key=lambda s: s.ratio or 1).name if slower else None
