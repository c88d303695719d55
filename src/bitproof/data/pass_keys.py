"""The batch sampler of a pass: the keys of its batches, and what each of them takes."""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import Sampler

from bitproof.data.progress import Step
from bitproof.data.seeds import SampleKey

Taken = deque[tuple[Any, tuple[SampleKey, ...]]]
"""What each batch that is on its way takes: (what the progress is told, its samples)."""


class PassKeys(Sampler[list[SampleKey]]):
    """The batch sampler underneath: the keys of the pass that was started last.

    It holds no reference to the loader, which holds the DataLoader, which holds this: without a cycle, workers end when
    the last reference to the loader goes.
    """

    def __init__(self) -> None:
        self._steps: Callable[[], Iterator[Step]] = lambda: iter(())
        self._left: Callable[[], int] = lambda: 0
        self._taken: Taken = deque()

    def start(self, steps: Callable[[], Iterator[Step]], left: Callable[[], int]) -> Taken:
        """Prepare a pass; return the queue in which what each batch takes will be found."""
        self._steps, self._left, self._taken = steps, left, deque()
        return self._taken

    def __iter__(self) -> Iterator[list[SampleKey]]:
        return _noting(self._steps(), self._taken)

    def __len__(self) -> int:
        return self._left()


def _noting(steps: Iterator[Step], taken: Taken) -> Iterator[list[SampleKey]]:
    for mark, keys in steps:
        taken.append((mark, tuple(keys)))
        yield keys
