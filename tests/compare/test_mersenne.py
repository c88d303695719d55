"""How far two states of one Mersenne Twister stream are apart."""

import random
import struct

import numpy as np
import pytest

from bitproof.compare.mersenne import MOST_DRAWS, shift


def state(generator: random.Random) -> bytes:
    """Return a state as a trail keeps it: 624 words and the position."""
    return struct.pack("<625I", *generator.getstate()[1])


def drawn(seed: int, draws: int) -> bytes:
    """Return the state after some 32-bit draws."""
    generator = random.Random(seed)
    for _ in range(draws):
        generator.getrandbits(32)
    return state(generator)


@pytest.mark.parametrize("draws", [0, 1, 2, 623, 624, 625, 1248, 5000])
@pytest.mark.parametrize("start", [0, 1, 623, 624, 700])
def test_counts_draws_in_both_directions(start: int, draws: int) -> None:
    """The number of draws is exact on both sides of a refill of the 624 words."""
    earlier, later = drawn(7, start), drawn(7, start + draws)
    assert shift(earlier, later) == draws
    assert shift(later, earlier) == -draws


def test_a_float_takes_two_draws() -> None:
    """random() takes two words, NumPy's random_sample() too, and randint one or more."""
    generator = random.Random(3)
    before = state(generator)
    generator.random()
    assert shift(before, state(generator)) == 2
    legacy = np.random.RandomState(3)
    before = _legacy(legacy)
    legacy.random_sample(5)
    assert shift(before, _legacy(legacy)) == 10


def test_other_streams_are_none() -> None:
    """Two seeds are on no common stream within reach, nor are states further apart than is searched."""
    assert shift(drawn(0, 0), drawn(1, 0), most=10_000) is None
    assert shift(drawn(0, 0), drawn(0, 700), most=600) is None
    assert MOST_DRAWS >= 1_000_000


def test_a_state_of_another_form_is_none() -> None:
    """What is no Mersenne Twister's state, such as a device's generator, is not compared."""
    assert shift(b"seed and offset", drawn(0, 0)) is None


def _legacy(generator: np.random.RandomState) -> bytes:
    _, words, position, *_ = generator.get_state()
    return words.astype("<u4").tobytes() + struct.pack("<I", position)
