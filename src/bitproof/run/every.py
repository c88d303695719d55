"""When a run saves by itself."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from bitproof.errors import UsageError


@dataclass(frozen=True)
class Every:
    """Save every so many steps, or every so many minutes, whichever comes first.

    Args:
        steps: at each multiple of this many optimizer steps of the whole run.
        minutes: when this much time has passed since the last save.

    Raises:
        UsageError: neither is given, or one is not above 0.

    Example:
        >>> Every(steps=100, minutes=10)
        Every(steps=100, minutes=10)
    """

    steps: int | None = None
    minutes: float | None = None

    def __post_init__(self) -> None:
        if self.steps is None and self.minutes is None:
            raise UsageError(
                "Every(): expected steps=, minutes= or both; to never save by itself, use save_every=None."
            )
        if self.steps is not None and self.steps < 1:
            raise UsageError(f"Every(steps={self.steps}): expected 1 or more.")
        if self.minutes is not None and not self.minutes > 0:
            raise UsageError(f"Every(minutes={self.minutes}): expected more than 0.")


class Schedule:
    """Tells when the next save is due.

    Args:
        every: the policy; None for never.
        step: the step at which the leg starts.
        clock: seconds, monotonic; for tests.
    """

    def __init__(self, every: Every | None, step: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._every, self._clock = every, clock
        self.saved(step)

    def due(self, step: int) -> bool:
        """Tell whether a save is due after a step."""
        if self._every is None:
            return False
        steps, minutes = self._every.steps, self._every.minutes
        if steps is not None and step // steps > self._step // steps:
            return True
        return minutes is not None and self._clock() - self._time >= 60 * minutes

    def saved(self, step: int) -> None:
        """Note a save, also one that failed: it is tried again when the next one is due."""
        self._step, self._time = step, self._clock()
