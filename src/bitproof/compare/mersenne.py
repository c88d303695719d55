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
    wanted = goal_words.tobytes()
    twister = np.random.MT19937(0)
    for turn in range(most // WORDS + 2):
        if words.tobytes() == wanted:
            draws = turn * WORDS + goal_position - position
            if 0 <= draws <= most:
                return draws
        twister.state = {"bit_generator": "MT19937", "state": {"key": words, "pos": WORDS}}
        twister.random_raw(1)
        words = twister.state["state"]["key"].astype(np.uint32)
    return None


def _parse(state: bytes) -> "tuple[np.ndarray[tuple[int], np.dtype[np.uint32]], int]":
    words = np.frombuffer(state[: 4 * WORDS], dtype="<u4").astype(np.uint32)
    return words, struct.unpack_from("<I", state, 4 * WORDS)[0]
