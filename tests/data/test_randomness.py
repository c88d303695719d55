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
from bitproof.data.randomness import CurrentSample, SampleSeeds, generators_put_back


def draws(seed: int, epoch: int, index: int) -> tuple[float, int, float, float]:
    """What a sample sees first of python's, torch's, NumPy's and its own generator."""
    with generators_put_back():
        SampleSeeds([Keys("sample", seed, size=24).pair(epoch, index)]).apply(0)
        stream = CurrentSample(seed, epoch, index).stream("")
        return random.random(), torch.default_generator.initial_seed(), np.random.random_sample(), stream.random()  # noqa: NPY002


GOLDEN = {
    (0, 0, 0): (0.3719017716895521, 13368480310042039634, 0.14219814163524946, 0.10100402546251253),
    (0, 0, 1): (0.6381572652695434, 14600795109054536389, 0.36294791591416553, 0.49772091105551497),
    (0, 1, 0): (0.7767837189989405, 121405194503669175, 0.5300805785375324, 0.9065052099888635),
    (1, 0, 0): (0.5039029587962842, 15555179073210565802, 0.9101140317281007, 0.25529459902693785),
    (1180591620717411303424, 3, 100000000000): (
        0.7861957906247299,
        8839357801836841761,
        0.7564759156795622,
        0.448686395597123,
    ),
}


@pytest.mark.parametrize(("sample", "expected"), GOLDEN.items())
def test_golden(sample: tuple[int, int, int], expected: tuple[float, int, float, float]) -> None:
    """What a sample draws in (seed, epoch) never changes within an order version."""
    assert draws(*sample) == expected


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


def test_numpy_draws_look_random() -> None:
    """First draws of NumPy's generator over many samples are spread evenly, and do not follow from one another."""
    seeds = SampleSeeds([Keys("sample", 0, size=24).pair(0, index) for index in range(4000)])
    found = np.empty((4000, 3))
    with generators_put_back():
        for k in range(4000):
            seeds.apply(k)
            found[k] = np.random.random_sample(3)  # noqa: NPY002
    counts = np.apply_along_axis(lambda column: np.histogram(column, 20, (0, 1))[0], 0, found)

    assert (((counts - 200) ** 2 / 200).sum(axis=0) < 45).all()
    assert np.abs(np.corrcoef(np.concatenate([found[1:], found[:-1]], axis=1).T) - np.eye(6))[:3, :].max() < 0.06


def test_cached_normal_draws_do_not_leak() -> None:
    """The second of a pair of normal draws, which generators keep, is not given to the next sample."""
    seeds = SampleSeeds([Keys("sample", 0, size=24).pair(0, index) for index in range(2)])

    def normals(k: int) -> tuple[float, float]:
        seeds.apply(k)
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
    stream = CurrentSample(0, 0, 0).stream("")

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
