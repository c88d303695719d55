"""How far apart two states of one 32-bit Mersenne Twister stream are."""

import struct

import numpy as np

WORDS = 624
MOST_DRAWS = 2_000_000
"""How far the stream is run forward in search of the other state."""


def shift(expected: bytes, found: bytes, most: int = MOST_DRAWS) -> int | None:
    """Return how many 32-bit draws ``found`` is ahead of ``expected`` (negative: behind).

    Args:
        expected: 624 little-endian words, then the position, as a trail keeps generators.
        found: likewise.
        most: how many draws to search in each direction.

    Returns:
        The number of draws, or None if the states are not that near on one stream.
    """
    if len(expected) < 4 * (WORDS + 1) or len(found) < 4 * (WORDS + 1):
        return None
    ahead = _forward(expected, found, most)
    if ahead is not None:
        return ahead
    behind = _forward(found, expected, most)
    return None if behind is None else -behind


def _forward(start: bytes, goal: bytes, most: int) -> int | None:
    words, position = _parse(start)
    goal_words, goal_position = _parse(goal)
    twister = np.random.MT19937(0)
    twister.state = {"bit_generator": "MT19937", "state": {"key": words, "pos": WORDS}}
    # A block of words is known by what it gives, so the stream can be drawn at once and searched block by block.
    wanted = _tempered(goal_words)
    turns = most // WORDS + 1
    drawn = twister.random_raw(turns * WORDS).reshape(turns, WORDS)
    blocks = np.concatenate([_tempered(words)[None].astype(np.uint64), drawn])
    for turn in np.flatnonzero((blocks[:, :4] == wanted[:4]).all(axis=1)):
        draws = int(turn) * WORDS + goal_position - position
        if 0 <= draws <= most and (blocks[turn] == wanted).all():
            return draws
    return None


def _tempered(words: "np.ndarray[tuple[int], np.dtype[np.uint32]]") -> "np.ndarray[tuple[int], np.dtype[np.uint32]]":
    """Return what a block of words gives (the tempering of Matsumoto and Nishimura, 1998)."""
    y = words ^ (words >> np.uint32(11))
    y ^= (y << np.uint32(7)) & np.uint32(0x9D2C5680)
    y ^= (y << np.uint32(15)) & np.uint32(0xEFC60000)
    y ^= y >> np.uint32(18)
    return y


def _parse(state: bytes) -> "tuple[np.ndarray[tuple[int], np.dtype[np.uint32]], int]":
    words = np.frombuffer(state[: 4 * WORDS], dtype="<u4").astype(np.uint32)
    return words, struct.unpack_from("<I", state, 4 * WORDS)[0]
