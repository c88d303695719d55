"""The fingerprint of a data set."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from data_samples import Drawing
from torch.utils.data import TensorDataset

from bitproof.data import fingerprint_of
from bitproof.data.content import content_digest


def test_golden() -> None:
    """A stored fingerprint stands for the same data in every version."""
    assert fingerprint_of(TensorDataset(torch.arange(100), torch.zeros(100))) == "1:8:b9c22c8dd970496a"


def test_random_augmentation_does_not_matter() -> None:
    """A data set that draws is read under generators of its own, so its fingerprint is stable, and nothing is drawn."""
    before = torch.get_rng_state()

    assert fingerprint_of(Drawing(30)) == fingerprint_of(Drawing(30))
    assert fingerprint_of(Drawing(30)).startswith("1:8:")
    assert torch.equal(before, torch.get_rng_state())


def test_unstable_samples_are_left_out() -> None:
    """Samples from a generator of the data set's own are not counted as content."""

    class Own(Drawing):
        generator = np.random.default_rng(0)

        def __getitem__(self, index: int) -> Any:
            return self.generator.random()

    assert fingerprint_of(Own(30)).startswith("1:0:")


def test_notices_changes() -> None:
    """Another length, another content and another order have other fingerprints."""
    base = list(range(50))
    found = {fingerprint_of(data) for data in (base, base[:-1], [*base[:-1], 7], base[::-1], [float(i) for i in base])}

    assert len(found) == 5


def test_own_fingerprint() -> None:
    """A data set that knows its fingerprint is asked, and not read."""

    class Known(Drawing):
        def fingerprint(self) -> str:
            return "v3"

        def __getitem__(self, index: int) -> torch.Tensor:
            raise AssertionError

    assert fingerprint_of(Known(5)) == "own:v3"


def test_hugging_face_datasets() -> None:
    """A Hugging Face data set is fingerprinted by its content."""
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [0, 1]})
    other = datasets.Dataset.from_dict({"text": ["a", "c"], "label": [0, 1]})

    assert fingerprint_of(data) == fingerprint_of(data)
    assert fingerprint_of(data) != fingerprint_of(other)


@dataclass
class Pair:
    """A sample of two fields."""

    a: int
    b: Any


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.zeros(2), torch.zeros(2, dtype=torch.bfloat16)),
        (torch.zeros(2), torch.zeros(1, 2)),
        (torch.tensor([0.0]), torch.tensor([-0.0])),
        (np.zeros(2, np.float32), np.zeros(2)),
        (np.float32(1), np.float64(1)),
        (1, True),
        (1, 1.0),
        ("a", b"a"),
        ([1, [2]], [[1], 2]),
        ({"a": 1}, {"b": 1}),
        (Pair(1, None), Pair(1, 0)),
        (torch.zeros(0), torch.zeros(0, 1)),
    ],
)
def test_digests_tell_apart(one: Any, other: Any) -> None:
    """Samples that differ in type, shape or any bit have different digests."""
    assert content_digest(one) == content_digest(one) is not None
    assert content_digest(one) != content_digest(other)


def test_unknown_objects() -> None:
    """A sample with an object whose bytes are unknown has no digest."""
    assert content_digest({"a": [object()]}) is None
