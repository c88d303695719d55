"""What a stream loses when it is resumed from its own state: measured, not assumed."""

import copy
from collections import Counter
from dataclasses import dataclass
from itertools import islice
from typing import Any

from bitproof.data.content import content_digest


@dataclass(frozen=True, kw_only=True)
class ResumeLoss:
    """What a resume after `at` samples did to the first `read` samples of a stream.

    Args:
        read: samples compared.
        at: samples taken before the resume.
        missing: samples that would never be seen.
        repeated: samples that would be seen twice.
        reordered: the samples are the same, in another order.

    """

    read: int
    at: int
    missing: int
    repeated: int
    reordered: bool

    @property
    def exact(self) -> bool:
        """Whether the resumed stream goes on as if nothing had happened."""
        return not (self.missing or self.repeated or self.reordered)

    def __str__(self) -> str:
        if self.exact:
            return f"resumed after {self.at} samples: the first {self.read} are the same"
        parts = [f"{self.missing} of {self.read} samples would never be seen"] if self.missing else []
        parts += [f"{self.repeated} would be seen twice"] if self.repeated else []
        return f"resumed after {self.at} samples: " + (", ".join(parts) or f"{self.read} samples come in another order")


def measure_resume(stream: Any, *, at: int | None = None, limit: int = 1000) -> ResumeLoss:
    """Resume a copy of a stream from its own state, and compare with an uninterrupted copy.

    The stream itself is not read: three deep copies are. A shuffled stream that is longer than `limit` may show samples
    as missing that would come later.

    Args:
        stream: iterable, with state_dict and load_state_dict.
        at: samples before the resume, by default half of those read.
        limit: samples to read at most.

    """
    whole, interrupted, resumed = (copy.deepcopy(stream) for _ in range(3))
    expected = [_identity(sample) for sample in islice(whole, limit)]
    at = len(expected) // 2 if at is None else at
    iterator = iter(interrupted)
    found = [_identity(sample) for sample in islice(iterator, at)]
    resumed.load_state_dict(copy.deepcopy(interrupted.state_dict()))
    found += [_identity(sample) for sample in islice(resumed, len(expected) - at)]
    missing, repeated = Counter(expected) - Counter(found), Counter(found) - Counter(expected)
    return ResumeLoss(
        read=len(expected),
        at=at,
        missing=missing.total(),
        repeated=repeated.total(),
        reordered=not missing and not repeated and found != expected,
    )


def _identity(sample: Any) -> bytes:
    return content_digest(sample) or repr(sample).encode()
