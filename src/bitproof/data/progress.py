"""Where a loader is, and which samples its next batches take."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from bitproof.data.keyed import Indexable
from bitproof.data.mixture import Mixture
from bitproof.data.order import ORDER_VERSION, Int64s, Order
from bitproof.data.plan import Plan
from bitproof.data.seeds import SampleKey
from bitproof.data.state import STATE_FORMAT, LoaderState, check_same_data

_AT_ONCE: Final = 1024
"""Samples of the order that are found in one call, from the third batch of a pass or so on."""

Step = tuple[Any, list[SampleKey]]
"""One batch of this rank: what `Progress.take` is told when the loop has taken it, and its samples."""


class Positions(Protocol):
    """What finds samples by position: an `Order` or a `Mixture`."""

    def locate(self, positions: npt.ArrayLike, /) -> tuple[Int64s, Int64s]:
        """Return (epochs, indices), both int64[k], at positions int64[k]."""
        ...


class Progress(Protocol):
    """Where a loader is: what its loop has taken, whatever was read ahead."""

    seed: int
    position: int
    epoch: int

    def steps(self) -> Callable[[], Iterator[Step]]:
        """Return what gives the batches from here to the end of the epoch; it does not follow later moves."""
        ...

    def take(self, mark: Any) -> None:
        """Note that the loop has taken a batch."""
        ...

    def finish(self) -> None:
        """Note that the pass has ended: go to the start of the next epoch."""
        ...

    def go(self, epoch: int) -> None:
        """Go to the start of an epoch."""
        ...

    def remaining(self) -> int:
        """Return the number of batches left in this pass."""
        ...

    def __len__(self) -> int:
        """Return the number of batches in a whole epoch."""
        ...

    def state_dict(self, fingerprint: str) -> dict[str, Any]:
        """Return the position, and what must match when it is loaded."""
        ...

    def load_state_dict(self, state: Mapping[str, Any], fingerprint: Callable[[], str], *, accept: bool) -> None:
        """Take up a position; `accept` goes on with data that has changed."""
        ...


class OrderProgress:
    """A position in the order: samples taken by all ranks together, over the endless stream of epochs.

    Args:
        dataset: the data set, or a `Mixture`, which brings its own order.
        plan: batches and shares.
        seed: of the order.
        shuffle: permute each epoch.

    """

    def __init__(self, dataset: Indexable, plan: Plan, *, seed: int, shuffle: bool) -> None:
        self.plan = plan
        self.seed, self.shuffle = seed, shuffle
        self.position = self.epoch = 0
        self._dataset = dataset

    @property
    def order(self) -> Positions:
        """The order of samples."""
        if isinstance(self._dataset, Mixture):
            return self._dataset
        return Order(self.plan.n, self.seed, shuffle=self.shuffle)

    def steps(self) -> Callable[[], Iterator[Step]]:
        """Return what gives the batches from here to the end of the epoch.

        Raises:
            BatchError: the last batch would leave some ranks without a sample.

        """
        plan, order, position, epoch = self.plan, self.order, self.position, self.epoch
        plan.check_shares(position, epoch)
        return lambda: _steps(plan, order, position, epoch)

    def take(self, mark: int) -> None:
        """Note that the loop has taken the batch that ends at position `mark`."""
        self.position = mark

    def finish(self) -> None:
        """Go to the start of the next epoch."""
        self.epoch += 1
        self.position = max(self.position, self.epoch * self.plan.n)

    def go(self, epoch: int) -> None:
        """Go to the start of an epoch."""
        self.position, self.epoch = epoch * self.plan.n, epoch

    def remaining(self) -> int:
        """Return the number of batches left in this pass."""
        return self.plan.remaining(self.position, self.epoch)

    def __len__(self) -> int:
        return self.plan.remaining(0, 0)

    def state_dict(self, fingerprint: str) -> dict[str, int | bool | str]:
        """Return the position, and what must match when it is loaded: plain values, below 300 bytes as JSON."""
        return LoaderState(
            format=STATE_FORMAT,
            order_version=ORDER_VERSION,
            seed=self.seed,
            shuffle=self.shuffle,
            position=self.position,
            epoch=self.epoch,
            length=self.plan.n,
            fingerprint=fingerprint,
        ).to_dict()

    def load_state_dict(self, state: Mapping[str, Any], fingerprint: Callable[[], str], *, accept: bool) -> None:
        """Take up a position.

        Raises:
            LoaderStateError: the state is no state of an order, damaged, or of another version.
            DataChangedError: it belongs to other data, and `accept` is False.

        """
        loaded = LoaderState.from_dict(state)
        if accept:
            offset = min(loaded.position - loaded.epoch * loaded.length, self.plan.n)
            loaded = replace(loaded, position=loaded.epoch * self.plan.n + offset)
        else:
            check_same_data((loaded.length, loaded.fingerprint), (self.plan.n, fingerprint()))
        self.seed, self.shuffle = loaded.seed, loaded.shuffle
        self.position, self.epoch = loaded.position, loaded.epoch


def _steps(plan: Plan, order: Positions, position: int, epoch: int) -> Iterator[Step]:
    """Yield each batch; the samples of several are found in one call, of the first batch alone."""
    batches, count = plan.batches(position, epoch), 1
    while spans := list(islice(batches, count)):
        shares = [plan.share(start, stop) for start, stop in spans]
        epochs, indices = order.locate(np.concatenate(shares))
        keys = iter(zip(epochs.tolist(), indices.tolist(), strict=True))
        for (_, stop), share in zip(spans, shares, strict=True):
            yield stop, list(islice(keys, len(share)))
        count = max(count, min(4 * count, _AT_ONCE // len(shares[0])))
