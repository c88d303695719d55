"""Which positions each batch takes, and each rank's share of them, as pure functions."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bitproof.data.errors import BatchError, DataLengthError, TopologyError
from bitproof.data.order import Int64s


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Global batches over the endless stream of positions, and one rank's share of each.

    A pass goes from a position to the end of an epoch. Batches are consecutive ranges of positions; at the end of the
    epoch the last one is short, or dropped (`drop_last`), or takes the missing samples from the next epoch
    (`cross_epochs`). Rank *r* of *R* takes positions ``start + r, start + r + R, …`` of each batch, so that shares are
    disjoint and complete, and a position alone says what comes next under any batch size and world size.

    Args:
        n: samples in an epoch.
        batch_size: samples in a global batch, over all ranks.
        rank: this process, 0 to world_size − 1.
        world_size: processes that share a batch.
        drop_last: leave out an epoch's last batch where it is short.
        cross_epochs: let batches run across the end of an epoch; all batches are then whole.

    Raises:
        DataLengthError: n is 0.
        BatchError: batch_size is below 1, above n, or not divisible by world_size; or both modes are asked for.
        TopologyError: world_size is below 1, or rank is not in [0, world_size).

    """

    n: int
    batch_size: int
    rank: int = 0
    world_size: int = 1
    drop_last: bool = False
    cross_epochs: bool = False

    def __post_init__(self) -> None:
        if self.n < 1:
            raise DataLengthError(
                f"the data set has {self.n} samples, expected 1 or more: check the path or filter that it is read by."
            )
        if self.world_size < 1 or not 0 <= self.rank < self.world_size:
            raise TopologyError(
                f"rank {self.rank} of world_size {self.world_size}: expected 0 <= rank < world_size. "
                "Ranks count from 0; pass torch.distributed.get_rank() and get_world_size()."
            )
        if self.batch_size < 1:
            raise BatchError(f"batch_size must be 1 or more, found {self.batch_size}.")
        if self.batch_size > self.n:
            raise BatchError(
                f"batch_size {self.batch_size} is larger than the data set's {self.n} samples: no batch could be "
                f"filled without repeating samples. Use batch_size={self.n} or less."
            )
        if self.batch_size % self.world_size:
            below = self.batch_size - self.batch_size % self.world_size
            raise BatchError(
                f"batch_size {self.batch_size} is not divisible by world_size {self.world_size}: batch_size counts "
                f"the samples of all ranks together. Use {below or self.world_size} or {below + self.world_size}."
            )
        if self.drop_last and self.cross_epochs:
            raise BatchError(
                "drop_last=True and cross_epochs=True exclude each other: with cross_epochs no batch is short. "
                "Choose one."
            )

    def batches(self, position: int, epoch: int) -> Iterator[tuple[int, int]]:
        """Yield (start, stop) of each global batch from `position` to the end of `epoch`."""
        end = (epoch + 1) * self.n
        while position < end:
            stop = position + self.batch_size
            if stop > end and not self.cross_epochs:
                if self.drop_last:
                    return
                stop = end
            yield position, stop
            position = stop

    def remaining(self, position: int, epoch: int) -> int:
        """Return the number of batches from `position` to the end of `epoch`."""
        left = max(0, (epoch + 1) * self.n - position)
        return left // self.batch_size if self.drop_last else -(-left // self.batch_size)

    def share(self, start: int, stop: int) -> Int64s:
        """Return this rank's positions (int64[k]) of the global batch [start, stop)."""
        return np.arange(start + self.rank, stop, self.world_size, dtype=np.int64)

    def check_shares(self, position: int, epoch: int) -> None:
        """Check that every rank has a share of each batch up to the end of `epoch`.

        Raises:
            BatchError: the last batch would leave some ranks without a sample.

        """
        left = (epoch + 1) * self.n - position
        short = left % self.batch_size
        if short and short < self.world_size and not (self.drop_last or self.cross_epochs):
            raise BatchError(
                f"the last batch of the epoch has {short} sample{'s' * (short > 1)} for {self.world_size} ranks "
                f"({left} samples left, batch_size {self.batch_size}): ranks without one would leave the others "
                "waiting in their collectives. Use drop_last=True, cross_epochs=True, or another batch_size."
            )
