"""Which checkpoints are kept."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from bitproof.errors import UsageError
from bitproof.store.manifest import Commit


class Retention(Protocol):
    """Chooses which checkpoints are kept."""

    def kept(self, commits: Sequence[Commit]) -> set[int]:
        """Return the sequence numbers of those that are kept."""


@dataclass(frozen=True)
class Keep:
    """Keep the newest checkpoints and the best one.

    Args:
        last: how many of the newest are kept, at least 1.
        best: the fact by which the best is chosen, such as ``"val_loss"``; None for no best one. A checkpoint without
            that fact, or with one that is no finite number, is never the best; of equals, the newest is.
        mode: whether the least (``"min"``) or the greatest (``"max"``) is best.

    Raises:
        UsageError: ``last`` is below 1, or ``mode`` is neither.
    """

    last: int = 3
    best: str | None = None
    mode: Literal["min", "max"] = "min"

    def __post_init__(self) -> None:
        if self.last < 1:
            raise UsageError(f"Keep(last={self.last}): at least 1 checkpoint must be kept.")
        if self.mode not in {"min", "max"}:
            raise UsageError(f"Keep(mode={self.mode!r}): expected 'min' or 'max'.")

    def kept(self, commits: Sequence[Commit]) -> set[int]:
        """Return the sequence numbers of those that are kept."""
        newest_first = sorted(commits, key=lambda commit: -commit.sequence)
        kept = {commit.sequence for commit in newest_first[: self.last]}
        best = self.best_of(newest_first)
        return kept | {best.sequence} if best else kept

    def best_of(self, commits: Sequence[Commit]) -> Commit | None:
        """Return the best one, if there is any; the first of equals."""
        if self.best is None:
            return None
        scored = [(commit, commit.facts.get(self.best)) for commit in commits]
        numbers = [
            (commit, value if self.mode == "min" else -value)
            for commit, value in scored
            if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        ]
        return min(numbers, key=lambda pair: pair[1])[0] if numbers else None
