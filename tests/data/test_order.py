"""The order of samples: bijection, quality, golden values, errors."""

import math
from collections import Counter
from itertools import permutations
from typing import Any

import numpy as np
import pytest

from bitproof.data import ORDER_VERSION, Order
from bitproof.data.errors import DataLengthError, PositionError

GOLDEN_VERSION = 2
"""The version that the values below belong to. Where one of them must change, both this and ORDER_VERSION tick."""

GOLDEN = [
    (1, 0, 0, 0),
    (1, 0, 1, 0),
    (1, 0, 3, 0),
    (2, 0, 0, 0),
    (2, 0, 2, 0),
    (2, 0, 6, 0),
    (5, 0, 0, 4),
    (5, 0, 3, 1),
    (5, 0, 16, 4),
    (7, 3, 0, 0),
    (7, 3, 4, 1),
    (7, 3, 23, 3),
    (1000, 0, 0, 808),
    (1000, 0, 501, 671),
    (1000, 0, 3333, 463),
    (1023, 1, 0, 11),
    (1023, 1, 512, 892),
    (1023, 1, 3410, 310),
    (1024, 1, 0, 618),
    (1024, 1, 513, 969),
    (1024, 1, 3413, 869),
    (1025, 1, 0, 181),
    (1025, 1, 513, 1020),
    (1025, 1, 3416, 869),
    (65537, 0, 0, 36540),
    (65537, 0, 32769, 28383),
    (65537, 0, 218456, 29874),
    (1000000, 42, 0, 959535),
    (1000000, 42, 500001, 578469),
    (1000000, 42, 3333333, 299993),
    (1000000, -7, 0, 584401),
    (1000000, -7, 500001, 980390),
    (1000000, -7, 3333333, 44888),
    (4194305, 0, 0, 1308906),
    (4194305, 0, 2097153, 2874900),
    (4194305, 0, 13981016, 1324631),
    (1000000007, 18446744073709551616, 0, 337896513),
    (1000000007, 18446744073709551616, 500000004, 167456549),
    (1000000007, 18446744073709551616, 3333333356, 64313249),
    (1000000000000, 0, 0, 145722430805),
    (1000000000000, 0, 500000000001, 428647016763),
    (1000000000000, 0, 3333333333333, 915181875699),
    (4611686018427387904, 1, 0, 3225077860028249864),
    (4611686018427387904, 1, 2305843009213693953, 1663740938947997717),
]


def boundary_lengths() -> list[int]:
    """2^k − 1, 2^k, 2^k + 1 and 4^k + 1 from 2,001 to 2^22 + 1."""
    around = {2**k + d for k in range(11, 23) for d in (-1, 0, 1)}
    return sorted(n for n in around | {4**k + 1 for k in range(1, 12)} if n > 2000)


def assert_bijection(n: int, seed: int, epoch: int) -> None:
    """Fail unless an epoch's indices are each of 0 … n − 1 once."""
    counts = np.bincount(Order(n, seed)[epoch * n : (epoch + 1) * n], minlength=n)

    assert counts.shape == (n,)
    assert (counts == 1).all()


def test_version() -> None:
    """The golden values belong to the version that is stored in states."""
    assert GOLDEN_VERSION == ORDER_VERSION


@pytest.mark.parametrize(("n", "seed", "position", "index"), GOLDEN)
def test_golden(n: int, seed: int, position: Any, index: int) -> None:
    """An index that a stored state stands for never changes within an order version."""
    assert Order(n, seed)[position] == index


@pytest.mark.parametrize("first", range(1, 2001, 250))
def test_bijection_small(first: int) -> None:
    """Every epoch of every length up to 2,000 is a permutation."""
    for n in range(first, first + 250):
        assert_bijection(n, seed=n % 7, epoch=n % 3)


@pytest.mark.parametrize("n", boundary_lengths())
def test_bijection_boundaries(n: int) -> None:
    """Every epoch is a permutation at powers of two and of four, and one beside them."""
    assert_bijection(n, seed=3, epoch=1)


@pytest.mark.slow
def test_bijection_bitmap() -> None:
    """Every one of 2·10^8 indices occurs once in an epoch."""
    n, step = 200_000_033, 2**22
    order, seen = Order(n, seed=1), np.zeros(n, dtype=bool)
    for start in range(0, n, step):
        seen[order[start : min(start + step, n)]] = True

    assert int(np.count_nonzero(seen)) == n


@pytest.mark.parametrize("n", [10**12, 2**62, 2**62 - 1, 10**18 + 9])
def test_large_n_in_range(n: int) -> None:
    """Indices of huge data sets lie in range and do not repeat within a batch."""
    indices = Order(n, seed=5)[n // 3 : n // 3 + 4096]

    assert indices.min() >= 0
    assert indices.max() < n
    assert len(np.unique(indices)) == 4096


def statistics(order: Any) -> list[float]:
    """Five statistics of a permutation (int64[n]) that a true shuffle passes.

    The share of neighbours with different parity; the share of distinct differences between neighbours; per batch
    of 256: the variance of the share that comes from the first half, relative to a true shuffle's, and χ² over its
    degrees of freedom for 64 contiguous classes and for the index modulo 64.
    """
    n, size = len(order), 256
    batches = order[: n // size * size].reshape(-1, size)
    flip = np.mean((order[1:] ^ order[:-1]) & 1)
    distinct = np.count_nonzero(np.bincount(np.diff(order) + n)) / (n - 1)
    share = (batches < n // 2).mean(axis=1)
    p = (n // 2) / n
    half = np.mean((share - p) ** 2) / (p * (1 - p) / size * (n - size) / (n - 1))
    return [flip, distinct, half, chi2(batches.astype(np.int64) * 64 // n, n), chi2(batches % 64, n)]


def chi2(classes: Any, n: int) -> float:
    """Mean χ² / degrees of freedom of 64 classes over batches (rows), corrected for drawing without replacement."""
    rows, size = classes.shape
    counts = np.bincount((np.arange(rows)[:, None] * 64 + classes).ravel(), minlength=rows * 64).reshape(rows, 64)
    expected = size / 64
    return np.mean(((counts - expected) ** 2 / expected).sum(axis=1)) / 63 * (n - 1) / (n - size)


@pytest.mark.parametrize(("n", "seeds"), [(1_048_576, 4), (1_000_003, 4), (100_000, 8)])
def test_shuffle_quality(n: int, seeds: int) -> None:
    """Five statistics over several seeds lie within noise of a true shuffle's."""
    ours = np.array([statistics(Order(n, seed)[0:n].astype(np.int32)) for seed in range(seeds)])
    true = np.array([statistics(np.random.default_rng(seed).permutation(n).astype(np.int32)) for seed in range(seeds)])
    noise = np.sqrt((ours.var(axis=0, ddof=1) + true.var(axis=0, ddof=1)) / seeds)

    z = (ours.mean(axis=0) - true.mean(axis=0)) / noise
    assert np.abs(z).max() < 4, (z, ours.mean(axis=0), true.mean(axis=0))


def test_quality_statistics_reject_an_affine_order() -> None:
    """The statistics tell a linear permutation from a shuffle, so that the test above can fail."""
    n = 100_000
    affine = np.arange(n) * 7_919 % n
    true = np.array(statistics(np.random.default_rng(0).permutation(n)))

    assert (np.abs(np.array(statistics(affine)) - true) > 0.2).sum() >= 4


@pytest.mark.parametrize("n", [3, 4, 5])
def test_small_lengths_reach_all_permutations(n: int) -> None:
    """Every permutation of a few samples is about as frequent as any other."""
    each = 30
    counts = Counter(tuple(Order(n, seed)[0:n].tolist()) for seed in range(each * math.factorial(n)))
    chi = sum((counts[p] - each) ** 2 / each for p in permutations(range(n)))
    freedom = math.factorial(n) - 1

    assert chi < freedom + 5 * math.sqrt(2 * freedom)


def test_seed_avalanche() -> None:
    """Each single bit of the seed changes about half of all bits of the indices."""
    n, size = 2**20, 4096
    base = Order(n, seed=0)[0:size]
    for bit in range(64):
        other = Order(n, seed=1 << bit)[0:size]
        flipped = np.bitwise_count((base ^ other).astype(np.uint64)).mean() / 20
        assert abs(flipped - 0.5) < 0.01
        assert np.count_nonzero(base == other) < 5


def test_epochs_are_unrelated_to_seeds() -> None:
    """Seed 0 at epoch 1 shares nothing with seed 1 at epoch 0, and epochs differ."""
    n = 10_000
    epochs = [Order(n, seed)[epoch * n : (epoch + 1) * n] for seed, epoch in ((0, 0), (0, 1), (1, 0), (-1, 0))]
    for a in range(4):
        for b in range(a):
            assert np.count_nonzero(epochs[a] == epochs[b]) < 10


def test_a_range_over_epochs_is_its_parts() -> None:
    """Any cut of the stream into ranges gives the same stream, over many epochs at once too."""
    order = Order(7, seed=2)
    whole = order[0:100]

    np.testing.assert_array_equal(whole, np.concatenate([order[0:13], order[13:14], order[14:100]]))
    np.testing.assert_array_equal(whole, [order[position] for position in range(100)])
    np.testing.assert_array_equal(whole[3:90:5], order[3:90:5])


def test_locate_gives_epochs() -> None:
    """Positions are found as (epoch, index), in any order of positions."""
    order = Order(5, seed=0)
    epochs, indices = order.locate([12, 3, 5])

    assert epochs.tolist() == [2, 0, 1]
    assert indices.tolist() == [order[12], order[3], order[5]]


def test_no_shuffle() -> None:
    """An order without shuffling is the sequence, epoch after epoch."""
    assert Order(3, shuffle=False)[0:7].tolist() == [0, 1, 2, 0, 1, 2, 0]


def test_one_sample() -> None:
    """An order of one sample is that sample, for ever."""
    assert Order(1, seed=9)[0:4].tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("n", [0, -1, 2**62 + 1])
def test_bad_length(n: int) -> None:
    """A length out of range is refused with the range and the value."""
    with pytest.raises(DataLengthError, match=rf"n must be from 1 to 2\*\*62, found {n}"):
        Order(n)


@pytest.mark.parametrize(
    ("position", "message"),
    [(-1, "must be 0 or more, found -1"), (slice(-3, 2), "found -3"), (2**63, "below"), (slice(4, None), "endless")],
)
def test_bad_position(position: Any, message: str) -> None:
    """A position outside the stream is refused, not counted from its end."""
    with pytest.raises(PositionError, match=message):
        Order(10)[position]


def test_negative_positions_of_arrays() -> None:
    """Arrays of positions are checked as well."""
    with pytest.raises(PositionError, match="found -2"):
        Order(10).locate([4, -2])
