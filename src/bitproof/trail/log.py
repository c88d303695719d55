"""Tell a log that a kill has cut, which is whole up to its last commit, from one that is damaged.

SQLite reads its write-ahead log up to the first frame whose checksum does not fit, and drops the rest without a word:
after a kill that is right, but one flipped bit would take all later steps along. The log is written from front to
back, so a frame of the same generation behind one that does not fit means damage.

The format: https://www.sqlite.org/fileformat2.html#the_write_ahead_log
"""

import functools

import numpy as np
from numpy.typing import NDArray

_HEADER = 32
_FRAME = 24
_ORDERS = {0x377F0682: "<u4", 0x377F0683: ">u4"}
"""The byte order of the checksums' words, by the log's first four bytes."""

Words = NDArray[np.uint32]


def is_damaged(log: bytes) -> bool:
    """Tell whether a log holds frames that SQLite would drop though they were written before others."""
    if len(log) < _HEADER:
        return False
    order = _ORDERS.get(int.from_bytes(log[:4], "big"))
    page = int.from_bytes(log[8:12], "big")
    if order is None or page not in {2**power for power in range(9, 17)}:
        return True
    header = np.frombuffer(log[:24], order).astype(np.uint32)[np.newaxis]
    written = np.frombuffer(log[24:_HEADER], ">u4").astype(np.uint32)
    if (_checksums(header, np.zeros((1, 2), np.uint32)) != written).any():
        return True
    count = (len(log) - _HEADER) // (_FRAME + page)
    frames = np.frombuffer(log, np.uint8, count * (_FRAME + page), _HEADER).reshape(count, _FRAME + page)
    same_generation = (frames[:, 8:16] == np.frombuffer(log, np.uint8, 8, 16)).all(axis=1)
    stored = frames[:, 16:24].copy().view(">u4").astype(np.uint32)
    before = np.concatenate([written[np.newaxis], stored])[:-1]
    summed = np.concatenate([frames[:, :8], frames[:, _FRAME:]], axis=1).view(order).astype(np.uint32)
    fits = same_generation & (_checksums(summed, before) == stored).all(axis=1)
    first_bad = int(np.argmin(fits)) if not fits.all() else count
    return bool(same_generation[first_bad + 1 :].any())


def _checksums(words: Words, start: Words) -> Words:
    """Continue SQLite's running checksum over each row of words.

    For each pair of words: ``s0 += w0 + s1; s1 += w1 + s0``, modulo 2**32. That is linear, so it is a product.

    Args:
        words: shape ``(n, 2 m)``.
        start: shape ``(n, 2)``, the two sums before.
    """
    weights, carry = _weights(words.shape[1] // 2)
    result: Words = words @ weights + start @ carry
    return result


@functools.cache
def _weights(pairs: int) -> tuple[Words, Words]:
    """Return how each word, and how the two sums before them, enter the two sums after ``pairs`` pairs."""
    rows = []
    # What a first and a second sum contribute to the last two, from the last pair backwards.
    first, second = (1, 0), (0, 1)
    for _ in range(pairs):
        rows += [second, (first[0] + second[0], first[1] + second[1])]
        first, second = _add(first, second), _add(_add(first, second), second)
    weights = np.array([[value % 2**32 for value in row] for row in reversed(rows)], np.uint32)
    return weights, np.array([[value % 2**32 for value in row] for row in (first, second)], np.uint32)


def _add(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    return (a[0] + b[0]) % 2**32, (a[1] + b[1]) % 2**32
