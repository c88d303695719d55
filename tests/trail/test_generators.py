"""Generators are read without drawing, in one form, and every change is seen."""

import random
import struct
from collections.abc import Callable

import numpy as np
import pytest
import torch

from bitproof.trail.generators import WORDS, Generators, NumpyReader, PythonReader, Reader, TorchReader

READERS: dict[str, Callable[[], Reader]] = {"python": PythonReader, "numpy": NumpyReader, "torch": TorchReader}


def draw(name: str) -> int:
    """Draw 32 bits."""
    if name == "python":
        return random.getrandbits(32)
    if name == "numpy":
        return int(np.random.randint(2**32, dtype=np.uint32))  # noqa: NPY002
    return int(torch.rand(()) * 2**24)  # of one draw's 32 bits it shows 24; randint takes two draws


def twister(state: bytes) -> np.random.MT19937:
    """NumPy's Mersenne Twister, started from a reader's state."""
    words = np.frombuffer(state[: 4 * WORDS], "<u4")
    (position,) = struct.unpack("<I", state[4 * WORDS : 4 * WORDS + 4])
    generator = np.random.MT19937()
    generator.state = {"bit_generator": "MT19937", "state": {"key": words, "pos": position}}
    return generator


@pytest.mark.parametrize("drawn", [0, 1, 2, 622, 623, 624, 625, 1248, 2000])
@pytest.mark.parametrize("name", READERS)
def test_the_state_is_a_mersenne_twister(name: str, drawn: int) -> None:
    """Words and position, given to NumPy's own twister, draw what the library draws next, at every point of a block."""
    for _ in range(drawn):
        draw(name)
    generator = twister(READERS[name]().state())
    expected = [draw(name) for _ in range(700)]
    shown = 2**24 if name == "torch" else 2**32
    assert [int(word) % shown for word in generator.random_raw(700)] == expected


def seed_all() -> None:
    """Seed all three."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    torch.manual_seed(0)


@pytest.mark.parametrize("name", READERS)
def test_reading_draws_nothing(name: str) -> None:
    """The next draws are the same with and without a look at the state."""
    reader = READERS[name]()
    seed_all()
    expected = [draw(name) for _ in range(5)]
    seed_all()
    found = []
    for _ in range(5):
        reader.read()
        reader.state()
        found.append(draw(name))
    assert found == expected


CHANGES: dict[str, list[Callable[[], object]]] = {
    "python": [
        random.random,
        lambda: random.gauss(0, 1),
        lambda: random.gauss(0, 1),  # uses up the number that was left over, and touches no word
        lambda: random.seed(5),
        lambda: random.getrandbits(1),
        lambda: random.shuffle([1, 2, 3]),
    ],
    "numpy": [
        np.random.rand,
        np.random.randn,
        np.random.randn,  # the number that was left over
        np.random.randn,
        lambda: np.random.seed(5),  # noqa: NPY002
        lambda: np.random.permutation(4),  # noqa: NPY002
        lambda: np.random.standard_normal(3),  # noqa: NPY002
        lambda: np.random.standard_normal(1),  # noqa: NPY002
    ],
    "torch": [
        lambda: torch.rand(1),
        lambda: torch.randn(1),
        lambda: torch.randn(1),
        lambda: torch.normal(0.0, 1.0, (1,)),
        lambda: torch.manual_seed(5),
        lambda: torch.randperm(4),
        lambda: torch.randn(20),
        lambda: torch.nn.functional.dropout(torch.ones(3)),
    ],
}


@pytest.mark.parametrize("name", READERS)
def test_every_change_is_seen(name: str) -> None:
    """Each draw gives a new digest, also one that only uses up a number left over from a pair; no draw keeps it."""
    reader = READERS[name]()
    seen = [reader.read()]
    for change in CHANGES[name]:
        change()
        seen.append(reader.read())
        assert reader.read() == seen[-1]
    assert len(set(seen)) == len(seen)


@pytest.mark.parametrize("name", READERS)
def test_the_same_state_has_the_same_digest(name: str) -> None:
    """A state that comes back has its old digest, whichever reader looks and whatever it saw before."""
    first = READERS[name]()
    seed_all()
    digest, state = first.read(), first.state()
    for change in CHANGES[name]:
        change()
        first.read()
    seed_all()
    assert first.read() == READERS[name]().read() == digest
    assert first.state() == state


def test_another_bit_generator_in_numpys_place() -> None:
    """A bit generator that the user puts below ``numpy.random`` is the one that is read."""
    before = np.random.get_bit_generator()
    reader = NumpyReader()
    digests = [reader.read()]
    try:
        np.random.set_bit_generator(np.random.PCG64(1))
        digests.append(reader.read())
        np.random.rand()  # noqa: NPY002
        digests.append(reader.read())
        np.random.set_bit_generator(np.random.MT19937(1))
        digests.append(reader.read())
        np.random.rand()  # noqa: NPY002
        digests.append(reader.read())
    finally:
        np.random.set_bit_generator(before)
    digests.append(reader.read())
    assert len(set(digests)) == 5
    assert digests[0] == digests[-1]


def test_states_are_handed_over_when_they_change() -> None:
    """A state is kept once for each change, under the digest by which the steps name it."""
    kept: list[tuple[str, int]] = []
    generators = Generators(lambda name, digest, state: kept.append((name, digest)) if state else None)
    first = generators.read()
    assert dict(kept) == first
    assert set(first) == {"torch", "python", "numpy"}
    generators.read()
    assert len(kept) == 3
    random.random()
    assert generators.read() | {"python": 0} == first | {"python": 0}
    assert [name for name, _ in kept[3:]] == ["python"]
