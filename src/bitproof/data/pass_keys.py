"""The batch sampler of a pass: the keys of its batches, and what each of them takes."""

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Protocol

import numpy.typing as npt
from torch.utils.data import Sampler

from bitproof.data.keyed import SampleKey
from bitproof.data.order import Int64s
from bitproof.data.plan import Plan

Taken = deque[tuple[int, tuple[SampleKey, ...]]]
"""What each batch that is on its way takes: (position after it, its samples)."""


class Positions(Protocol):
    """What finds samples by position: an `Order` or a `Mixture`."""

    def locate(self, positions: npt.ArrayLike, /) -> tuple[Int64s, Int64s]:
        """Return (epochs, indices), both int64[k], at positions int64[k]."""
        ...


class PassKeys(Sampler[list[SampleKey]]):
    """The batch sampler underneath: the keys of the pass that was started last.

    It holds no reference to the loader, which holds the DataLoader, which holds this: without a cycle, workers end when
    the last reference to the loader goes.
    """

    def __init__(self) -> None:
        self._make: Callable[[], Iterator[list[SampleKey]]] = partial(iter, ())
        self._left = 0

    def start(self, plan: Plan, order: Positions, position: int, epoch: int) -> Taken:
        """Prepare a pass; return the queue in which each batch's (end position, samples) will be found."""
        taken: Taken = deque()
        self._make = partial(_batch_keys, plan, order, position, epoch, taken)
        self._left = plan.remaining(position, epoch)
        return taken

    def __iter__(self) -> Iterator[list[SampleKey]]:
        return self._make()

    def __len__(self) -> int:
        return self._left


def _batch_keys(plan: Plan, order: Positions, position: int, epoch: int, taken: Taken) -> Iterator[list[SampleKey]]:
    for start, stop in plan.batches(position, epoch):
        epochs, indices = order.locate(plan.share(start, stop))
        keys = list(zip(epochs.tolist(), indices.tolist(), strict=True))
        taken.append((stop, tuple(keys)))
        yield keys
