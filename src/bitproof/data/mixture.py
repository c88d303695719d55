"""Several data sets mixed by weight, with exact counts and random access."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from bitproof.data.content import fingerprint_of
from bitproof.data.errors import DataLengthError, MixtureError, PositionError
from bitproof.data.keyed import Indexable
from bitproof.data.keys import derive_int
from bitproof.data.order import Int64s, Order


class Mixture:
    """Data sets mixed by weight: each block of samples has exactly its share of each.

    A block has one slot a unit of weight. Slots are permuted within each block, and each slot is the next sample of its
    source, which goes through endless epochs of its own (block-deterministic mixing, as in Levanter's
    MixtureDataset, 2024). So the source, its epoch and its index at any position are found in constant time.

    Samples of all sources are numbered in one row, the first source's first, as in `torch.utils.data.ConcatDataset`.
    Give it to `Loader` like any data set: the loader's `seed` then keys per-sample randomness only, the order
    is the mixture's. A pass is the least number of whole blocks that draw from each source as often as it has samples.

    >>> mixture = Mixture({"web": list(range(9)), "code": list(range(3))}, weights={"web": 3, "code": 1}, seed=0)
    >>> mixture.block_size, mixture.n
    (4, 12)
    >>> [mixture.source_at(position) for position in range(4)]
    [('code', 2), ('web', 7), ('web', 6), ('web', 8)]

    Args:
        sources: name to map-style data set.
        weights: name to weight, whole numbers of 1 or more.
        seed: any integer.
        block_size: a multiple of the sum of weights, by default the sum. Larger blocks vary more.

    Raises:
        MixtureError: names differ, a weight is no whole number above 0, or block_size is no multiple.
        DataLengthError: a source is empty.

    """

    def __init__(
        self,
        sources: Mapping[str, Indexable],
        *,
        weights: Mapping[str, int],
        seed: int = 0,
        block_size: int | None = None,
    ) -> None:
        _check(sources, weights, block_size)
        total = sum(weights.values())
        self.names = tuple(sources)
        self.sources = dict(sources)
        self.seed = int(seed)
        self.block_size = block_size or total
        slots = np.array([weights[name] * (self.block_size // total) for name in self.names], dtype=np.int64)
        lengths = [len(sources[name]) for name in self.names]
        self._slots = slots
        self._slot_ends = np.cumsum(slots)
        self._starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        self._blocks = Order(self.block_size, derive_int("mixture blocks", self.seed))
        self._orders = [Order(len(sources[name]), derive_int("mixture source", self.seed, name)) for name in self.names]
        blocks = max(-(-length // int(slot)) for length, slot in zip(lengths, slots, strict=True))
        self.n = blocks * self.block_size

    def __len__(self) -> int:
        """Return the number of samples of all sources together; a pass has `n`."""
        return int(self._starts[-1])

    def __getitem__(self, index: int) -> Any:
        """Return a sample by its number among all sources' samples."""
        if not 0 <= index < len(self):
            raise PositionError(f"Mixture: index must be from 0 to {len(self) - 1}, found {index}.")
        source = int(np.searchsorted(self._starts, index, side="right")) - 1
        return self.sources[self.names[source]][index - int(self._starts[source])]

    def fingerprint(self) -> str:
        """Return a fingerprint of all that the order depends on, and of the sources (see `fingerprint_of`)."""
        slots = self._slots.tolist()
        sources = [fingerprint_of(self.sources[name]) for name in self.names]
        parts = (self.seed, list(zip(self.names, slots, sources, strict=True)))
        return xxhash.xxh3_64_hexdigest(repr(parts).encode())

    def locate(self, positions: npt.ArrayLike) -> tuple[Int64s, Int64s]:
        """Return (epochs of the source, indices among all sources), both int64[k], at positions int64[k].

        Raises:
            PositionError: a position is negative.

        """
        draws, sources = self._draws(np.asarray(positions, dtype=np.int64))
        epochs, indices = np.empty_like(draws), np.empty_like(draws)
        for number, order in enumerate(self._orders):
            here = sources == number
            epochs[here], within = order.locate(draws[here])
            indices[here] = within + self._starts[number]
        return epochs, indices

    def source_at(self, position: int) -> tuple[str, int]:
        """Return (name of the source, index in it) at a position."""
        index = int(self.locate([position])[1][0])
        source = int(np.searchsorted(self._starts, index, side="right")) - 1
        return self.names[source], index - int(self._starts[source])

    def _draws(self, positions: Int64s) -> tuple[Int64s, Int64s]:
        """Return which draw of which source each position is, both int64[k]."""
        blocks, slots = self._blocks.locate(positions)
        sources = np.searchsorted(self._slot_ends, slots, side="right")
        within = slots - (self._slot_ends - self._slots)[sources]
        return blocks * self._slots[sources] + within, sources


def _check(sources: Mapping[str, Indexable], weights: Mapping[str, Any], block_size: int | None) -> None:
    if not sources or set(sources) != set(weights):
        raise MixtureError(
            f"Mixture: sources are {sorted(sources)} and weights are for {sorted(weights)}: expected the same names, "
            "one or more. Leave a source out of both to leave it out."
        )
    for name, weight in weights.items():
        if isinstance(weight, bool) or not isinstance(weight, int) or weight < 1:
            raise MixtureError(
                f"Mixture: the weight of {name!r} must be a whole number of 1 or more, found {weight!r}. Scale the "
                "weights: 0.75 and 0.25 are 3 and 1. Leave a source out to give it none."
            )
    total = sum(weights.values())
    if block_size is not None and (block_size < 1 or block_size % total):
        raise MixtureError(
            f"Mixture: block_size must be a multiple of the sum of weights, {total}, found {block_size}. "
            f"Use {max(1, round(block_size / total)) * total}."
        )
    for name, source in sources.items():
        if len(source) < 1:
            raise DataLengthError(
                f"Mixture: source {name!r} has 0 samples: expected 1 or more. Check its path, or leave it out."
            )
