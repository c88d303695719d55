"""Per-sample randomness: golden values, independence, what is refused."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from data_samples import Drawing, read

from bitproof.data import Loader, sample_rng
from bitproof.data.errors import SampleRandomError
from bitproof.data.keys import Keys, derive, derive_int
from bitproof.data.numpy_generator import GlobalNumpyGenerator
from bitproof.data.randomness import CurrentSample, SampleGenerators, generators_put_back
from bitproof.data.seeds import seeds_of


def current(seed: int, epoch: int, index: int) -> CurrentSample:
    """The sample being read."""
    sample = CurrentSample(seed)
    sample.move((epoch, index))
    return sample


def draws(seed: int, epoch: int, index: int) -> tuple[float, int, float, float]:
    """What a sample sees first of python's, torch's, NumPy's and its own generator."""
    with generators_put_back():
        SampleGenerators(seeds_of("sample", seed, [(epoch, index)])).set(0)
        stream = current(seed, epoch, index).stream("")
        return random.random(), torch.default_generator.initial_seed(), np.random.random_sample(), stream.random()  # noqa: NPY002


GOLDEN = {
    (0, 0, 0): (0.8743841307989112, 5945343749634262492, 0.469384326789984, 0.10100402546251253),
    (0, 0, 1): (0.20595475434829724, 1605604796659309526, 0.9769540883066233, 0.49772091105551497),
    (0, 1, 0): (0.4865646006694967, 8701417529421389585, 0.07103406876503937, 0.9065052099888635),
    (1, 0, 0): (0.42259183846863135, 1715386727495129061, 0.511498975202393, 0.25529459902693785),
    (1180591620717411303424, 3, 100000000000): (
        0.9738838232823046,
        1775752844007929150,
        0.290182326683311,
        0.448686395597123,
    ),
}


@pytest.mark.parametrize(("sample", "expected"), GOLDEN.items())
def test_golden(sample: tuple[int, int, int], expected: tuple[float, int, float, float]) -> None:
    """What a sample draws in (seed, epoch) never changes within an order version."""
    assert draws(*sample) == expected


def plain_splitmix(x: int) -> int:
    """The splitmix64 finaliser in Python's own integers."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
    return x ^ (x >> 31)


@pytest.mark.parametrize("sample", GOLDEN)
def test_golden_by_public_interfaces(sample: tuple[int, int, int]) -> None:
    """What is written into memory is what NumPy's and python's own interfaces give for the documented computation."""
    seed, epoch, index = sample
    start = derive("sample", seed, epoch, size=32)
    words = [int.from_bytes(start[8 * k : 8 * k + 8], "little") for k in range(4)]
    torch_seed, *state = (plain_splitmix((word + index * 0x9E3779B97F4A7C15) % 2**64) for word in words)
    source: Any = np.random.SFC64(0)
    source.state = {**source.state, "state": {"state": np.array([*state, 1], dtype=np.uint64)}}
    outputs = source.random_raw(12 + 624)[12:].view(np.uint32)
    of_python, of_numpy = random.Random(), np.random.RandomState()
    of_python.setstate((3, (*outputs[:624].tolist(), 624), None))
    of_numpy.set_state(("MT19937", outputs[624:], 624))

    assert draws(*sample)[:3] == (of_python.random(), torch_seed, of_numpy.random_sample())


def test_golden_keys() -> None:
    """Keys are hashes of tagged parts, and never change."""
    assert derive("order", 1, 23).hex() == "e991085d8b273721"
    assert derive_int("order", np.int64(1), 23) == int.from_bytes(derive("order", 1, 23), "little")


def test_keys_do_not_collide() -> None:
    """Parts that look alike when joined have different keys."""
    parts: list[tuple[str | int, ...]] = [
        ("a", 1, 23),
        ("a", 12, 3),
        ("a", 123),
        ("a", "1", 23),
        ("a1", 23),
        ("a", -1, 23),
        (),
    ]

    assert len({derive(*p) for p in parts}) == len(parts)
    assert Keys("a")(1, 23) == derive("a", 1, 23)
    assert Keys("a").pair(0, 1) != Keys("a").pair(1, 0)


def test_samples_are_independent() -> None:
    """Neighbouring seeds, epochs and samples share no first draw, of any generator."""
    found = [draws(seed, epoch, index) for seed in range(4) for epoch in range(4) for index in range(30)]

    for generator in zip(*found, strict=True):
        assert len(set(generator)) == len(found)


@pytest.mark.parametrize(
    "draw",
    [
        lambda: np.random.random_sample(3),  # noqa: NPY002
        lambda: [random.random() for _ in range(3)],
        lambda: torch.rand(3, dtype=torch.float64).numpy(),
        lambda: [random.random(), np.random.random_sample(), torch.rand(1, dtype=torch.float64).item()],  # noqa: NPY002
    ],
    ids=["numpy", "python", "torch", "all"],
)
def test_draws_look_random(draw: Any) -> None:
    """First draws of each generator over many samples are spread evenly, and do not follow from one another."""
    generators = SampleGenerators(seeds_of("sample", 0, [(0, index) for index in range(4000)]))
    found = np.empty((4000, 3))
    with generators_put_back():
        for k in range(4000):
            generators.set(k)
            found[k] = draw()
    counts = np.apply_along_axis(lambda column: np.histogram(column, 20, (0, 1))[0], 0, found)

    assert (((counts - 200) ** 2 / 200).sum(axis=0) < 45).all()
    assert np.abs(np.corrcoef(np.concatenate([found[1:], found[:-1]], axis=1).T) - np.eye(6))[:3, :].max() < 0.06


def test_cached_normal_draws_do_not_leak() -> None:
    """The second of a pair of normal draws, which generators keep, is not given to the next sample."""
    generators = SampleGenerators(seeds_of("sample", 0, [(0, index) for index in range(2)]))

    def normals(k: int) -> tuple[float, float]:
        generators.set(k)
        return random.gauss(0, 1), np.random.standard_normal()  # noqa: NPY002

    with generators_put_back():
        first = normals(1)
        normals(0)
        assert normals(1) == first


def test_put_back_after_an_error() -> None:
    """Generators are put back also when a sample cannot be read."""

    class Broken(Drawing):
        def __getitem__(self, index: int) -> torch.Tensor:
            raise KeyError(index)

    before = random.getstate(), repr(np.random.get_state()), torch.get_rng_state()  # noqa: NPY002
    with pytest.raises(KeyError):
        read(Loader(Broken(3), 1))

    assert (random.getstate(), repr(np.random.get_state())) == before[:2]  # noqa: NPY002
    assert torch.equal(before[2], torch.get_rng_state())
    with pytest.raises(SampleRandomError):
        sample_rng()


def test_put_back_follows_the_surroundings() -> None:
    """What the training loop draws between batches goes on as without a loader."""

    def train(loader: Any) -> list[float]:
        np.random.seed(3)  # noqa: NPY002
        found = []
        for _ in loader:
            found += [np.random.standard_normal() for _ in range(3)]  # noqa: NPY002
        return found

    assert train(Loader(Drawing(8), 2)) == train(range(4))


def test_streams_of_a_sample() -> None:
    """sample_rng continues one stream a name, and names are independent."""

    class Streams(Drawing):
        def __getitem__(self, index: int) -> torch.Tensor:
            first, crop, second = sample_rng().random(), sample_rng("crop").random(), sample_rng().random()
            return torch.tensor([first, crop, second], dtype=torch.float64)

    (row,) = read(Loader(Streams(1), 1))[0]
    stream = current(0, 0, 0).stream("")

    assert [row[0], row[2]] == [stream.random(), stream.random()]
    assert len(set(row)) == 3


def test_sample_rng_outside() -> None:
    """sample_rng outside of a sample says where to call it."""
    with pytest.raises(SampleRandomError, match=r"outside of dataset.*default_rng"):
        sample_rng()


def test_other_bit_generator() -> None:
    """A global NumPy generator of another kind is refused, with the remedy."""
    standard = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(1))
    try:
        with pytest.raises(
            SampleRandomError, match=r"expected the standard MT19937, found PCG64.*sample_randomness=False"
        ):
            GlobalNumpyGenerator()
    finally:
        np.random.set_bit_generator(standard)
