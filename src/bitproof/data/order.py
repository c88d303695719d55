"""The order of samples as a pure function of (seed, position)."""

import math
import operator
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, overload

import numpy as np
import numpy.typing as npt

from bitproof.data.errors import DataLengthError, PositionError
from bitproof.data.keys import derive

ORDER_VERSION: Final = 2
"""Version of (n, seed, position) -> index, and of what a sample draws. Ticks whenever any golden value changes."""

Int64s = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]

_ROUNDS: Final = 6
_ROUNDS_SMALL: Final = 16  # on the tiny halves of a small n each round mixes little: six leave some permutations rare
_SMALL: Final = 1024
_MAX_LENGTH: Final = 2**62  # a·b stays below 2^63, so no sum wraps
_MAX_POSITION: Final = 2**63 - 1
_BLOCK: Final = 1 << 13  # positions worked on at once: three arrays of 64 KiB stay in a core's cache


def _constant(value: int) -> UInt64s:
    """Return an array of no dimension: NumPy takes half as long for one as for a scalar, which it converts each time."""
    return np.array(value, dtype=np.uint64)


_U30, _U27, _U31, _U32 = map(_constant, (30, 27, 31, 32))
_MIX_1, _MIX_2 = map(_constant, (0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


class Order:
    """An endless stream of epochs over `n` samples, each epoch a permutation of its own.

    Position *p* is offset ``p % n`` of epoch ``p // n``. Any position is found in constant time and memory: nothing
    is stored, and no generator is run up to it.

    The permutation is a generalised Feistel network on Z_a × Z_b with a = ⌈√n⌉ and b = ⌈n / a⌉ (Black and Rogaway,
    "Ciphers with Arbitrary Finite Domains", 2002), of six rounds, with cycle walking from a·b down to n (same paper;
    a·b exceeds n by less than √n + 1, so a walk is rare); of 16 rounds where n is below 1,024. The round function is the splitmix64 finaliser (Steele, Lea and
    Flood, "Fast Splittable Pseudorandom Number Generators", 2014; constants by Stafford, mix 13) of half + key, of
    which the upper 32 bits are reduced to the half's range by a multiplication (Lemire, 2019). Round keys are hashed
    from ("order", seed, epoch). It uses integers only, hence gives the same on every machine and in every version
    of NumPy and PyTorch; `ORDER_VERSION` would tick otherwise.

    >>> order = Order(n=10**12, seed=0)
    >>> order[10**11]
    117304358346
    >>> Order(n=5, seed=0)[0:10]
    array([4, 0, 3, 1, 2, 2, 4, 3, 1, 0])

    Args:
        n: samples in an epoch, 1 to 2^62.
        seed: any integer.
        shuffle: False leaves every epoch in sequence.

    Raises:
        DataLengthError: n is out of range.

    """

    def __init__(self, n: int, seed: int = 0, *, shuffle: bool = True) -> None:
        n, seed = operator.index(n), operator.index(seed)
        if not 1 <= n <= _MAX_LENGTH:
            raise DataLengthError(
                f"Order: n must be from 1 to 2**62, found {n}. "
                + (
                    "An empty data set has no order: check its path or filter."
                    if n == 0
                    else "Check how n was computed."
                )
            )
        self.n = n
        self.seed = seed
        self.shuffle = shuffle
        a = math.isqrt(n - 1) + 1
        self._a, self._b, self._end = _constant(a), _constant(-(-n // a)), _constant(n)
        self._length = np.array(n)
        self._rounds = _ROUNDS_SMALL if n < _SMALL else _ROUNDS

    def __repr__(self) -> str:
        return f"Order(n={self.n}, seed={self.seed}, shuffle={self.shuffle})"

    @overload
    def __getitem__(self, position: int) -> int: ...
    @overload
    def __getitem__(self, position: slice) -> Int64s: ...
    def __getitem__(self, position: int | slice) -> int | Int64s:
        """Return the index at a position, or the indices (int64[stop − start]) of a range ``order[start:stop]``.

        Raises:
            PositionError: a position is negative, at or above 2^63, or a range has no end.

        """
        if isinstance(position, slice):
            return self.locate(self._range(position))[1]
        return int(self.locate(np.array([_checked(operator.index(position))]))[1][0])

    def locate(self, positions: npt.ArrayLike) -> tuple[Int64s, Int64s]:
        """Return (epochs, indices), both int64[k], for positions int64[k] of the endless stream.

        Raises:
            PositionError: a position is negative.

        """
        where = np.ascontiguousarray(positions, dtype=np.int64)
        if where.size and (least := np.minimum.reduce(where, axis=None)) < 0:
            raise PositionError(_negative(int(least)))
        epochs = where // self._length
        offsets = where - epochs * self._length
        return epochs, self.permute(epochs, offsets) if self.shuffle else offsets

    def permute(self, epochs: Int64s, offsets: Int64s) -> Int64s:
        """Return the indices, int64[k], at offsets (int64[k], each in [0, n)) of epochs (int64[k])."""
        out = np.empty(offsets.shape, dtype=np.uint64)
        for start in range(0, offsets.size, _BLOCK):
            block = slice(start, start + _BLOCK)
            out[block] = self._permute_block(epochs[block], offsets[block].astype(np.uint64))
        return out.astype(np.int64)

    def _permute_block(self, epochs: Int64s, x: UInt64s) -> UInt64s:
        keys = self._keys(epochs)
        out = self._network(x, keys)
        outside = (out >= self._end).nonzero()[0]
        while outside.size:
            walked = self._network(out[outside], [key[outside] if key.ndim else key for key in keys])
            out[outside] = walked
            outside = outside[walked >= self._end]
        return out

    def _keys(self, epochs: Int64s) -> Sequence[UInt64s]:
        """One key a round: uint64[] where all epochs are the same, else uint64[k]."""
        first = epochs[:1]
        if np.logical_and.reduce(epochs == first):
            return _round_keys(self.seed, int(first[0]), self._rounds)
        distinct, inverse = np.unique(epochs, return_inverse=True)
        keys = np.stack([_round_keys(self.seed, int(epoch), self._rounds) for epoch in distinct], axis=1)
        return list(keys[:, inverse])

    def _network(self, x: UInt64s, keys: Sequence[UInt64s]) -> UInt64s:
        a, b = self._a, self._b
        left = x // b
        right = x - left * b
        hashed, spare = np.empty_like(x), np.empty_like(x)
        for number, key in enumerate(keys):
            if number % 2 == 0:
                _round(left, right, key, a, hashed, spare)
            else:
                _round(right, left, key, b, hashed, spare)
        left *= b
        left += right
        return left

    def _range(self, positions: slice) -> Int64s:
        if positions.stop is None:
            raise PositionError(f"{self!r} is endless: a range needs an end, as in order[{positions.start or 0}:1024].")
        start = _checked(operator.index(positions.start or 0))
        stop = _checked(operator.index(positions.stop))
        return np.arange(start, stop, operator.index(positions.step or 1), dtype=np.int64)


def _round(target: UInt64s, source: UInt64s, key: UInt64s, size: UInt64s, hashed: UInt64s, spare: UInt64s) -> None:
    """Add hash(source + key), reduced to [0, size), to target modulo size; in place, with two arrays for scratch."""
    np.add(source, key, hashed)
    _mix(hashed, spare)  # without splitmix64's last step, which hardly touches the upper half
    hashed >>= _U32
    hashed *= size
    hashed >>= _U32
    target += hashed
    # target mod size for target < 2·size: where it is already below, the difference wraps to a huge number.
    np.subtract(target, size, spare)
    np.minimum(target, spare, out=target)


def splitmix(x: UInt64s, spare: UInt64s) -> None:
    """Apply the splitmix64 finaliser to x (uint64, any shape) in place; spare is scratch of the same shape."""
    _mix(x, spare)
    np.right_shift(x, _U31, spare)
    x ^= spare


def _mix(x: UInt64s, spare: UInt64s) -> None:
    np.right_shift(x, _U30, spare)
    x ^= spare
    x *= _MIX_1
    np.right_shift(x, _U27, spare)
    x ^= spare
    x *= _MIX_2


@lru_cache(maxsize=4096)
def _round_keys(seed: int, epoch: int, rounds: int) -> tuple[UInt64s, ...]:
    """Round keys, uint64[] each, eight from each digest."""
    digests = b"".join(derive("order", seed, epoch, first, size=64) for first in range(0, rounds, 8))
    keys = np.frombuffer(digests, dtype="<u8")[:rounds].astype(np.uint64)
    return tuple(map(_constant, keys.tolist()))


def _checked(position: int) -> int:
    if position < 0:
        raise PositionError(_negative(position))
    if position > _MAX_POSITION:
        raise PositionError(f"Order: position must be below 2**63, found {position}. No run reads that many samples.")
    return position


def _negative(position: int) -> str:
    return (
        f"Order: position must be 0 or more, found {position}. "
        "The stream has a start and no end, so there is nothing to count back from: use epoch * n + offset."
    )
