"""Every generator is found, read without drawing, and put back in place."""

import functools
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler

from bitproof.state import capture, decode, encode, restore, rng


def stored(components: Any) -> Any:
    """Return the state of parts as it would come from a file."""
    document, tensors = encode(capture(components))
    return decode(document, {name: tensor.clone() for name, tensor in tensors.items()})


def draw() -> list[float]:
    """Draw from each global generator, also normal numbers, of which two are made at once."""
    return [
        random.random(),
        random.gauss(0, 1),
        np.random.rand(),  # noqa: NPY002  # the global one is under test
        np.random.randn(),  # noqa: NPY002
        torch.rand(1).item(),
        torch.randn(1).item(),
    ]


class Flip:
    """A transform with a generator in a slot."""

    __slots__ = ("chance", "rng")

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)


class Compose:
    """Transforms in a nested list, with their own generators of both libraries, and one that holds itself."""

    def __init__(self, seed: int) -> None:
        self.steps = [Flip(seed), {"deep": [Flip(seed + 1), random.Random(seed + 2)]}]
        self.again = self
        self.jitter = functools.partial(self.noise, rng=np.random.RandomState(seed + 3))
        hidden = torch.Generator().manual_seed(seed)
        self.call = lambda: torch.rand(1, generator=hidden).item()

    @staticmethod
    def noise(rng: np.random.RandomState) -> float:
        """Draw."""
        return rng.rand()

    @property
    def never(self) -> None:
        """Fail if it is called."""
        raise AssertionError

    def draw(self) -> list[float]:
        """Draw from each generator."""
        deep: Any = self.steps[1]
        return [
            self.steps[0].rng.random(),
            deep["deep"][0].rng.random(),
            deep["deep"][1].random(),
            self.jitter(),
            self.call(),
        ]

    def state_dict(self) -> dict[str, Any]:
        """Have no state but the generators."""
        return {}

    def load_state_dict(self, state: Any) -> None:
        """Take nothing."""


def test_global_generators_come_back_without_a_draw() -> None:
    """Reading draws nothing; after a restore each draws what it drew, the kept half of a pair of normals too."""
    random.gauss(0, 1)
    np.random.randn()  # noqa: NPY002
    torch.randn(1)
    saved = stored({})
    expected = draw()
    draw()
    assert restore({}, saved).complete
    assert draw() == expected


def test_generators_inside_objects_come_back_by_path() -> None:
    """Generators in slots, nested containers, partials and closures are found by the shortest path and put back."""
    transforms = Compose(0)
    transforms.draw()
    saved = stored({"transforms": transforms})
    assert list(saved["generators"]["found"]) == [
        "transforms.call:hidden",
        "transforms.steps[0].rng",
        "transforms.jitter.keywords['rng']",
        "transforms.steps[1]['deep'][1]",
        "transforms.steps[1]['deep'][0].rng",
    ]
    expected = transforms.draw()
    fresh = Compose(5)
    report = restore({"transforms": fresh}, saved)
    assert report.complete, report.parts
    assert fresh.draw() == expected


def test_a_loaders_sampler_is_found_and_named_once() -> None:
    """A generator that loader and sampler share is one; datasets and submodules are searched too."""
    dataset = [Flip(1)]
    generator = torch.Generator()
    loader = DataLoader(dataset, sampler=RandomSampler(dataset, generator=generator), generator=generator)
    model = nn.Sequential(nn.Identity())
    model[0].rng = random.Random(1)
    found = rng.find_generators({"loader": loader, "model": model}).found
    assert [path for path, _ in found] == ["loader.generator", "model.0.rng", "loader.dataset[0].rng"]


def test_global_generators_inside_objects_do_not_count() -> None:
    """An object that holds a global generator holds nothing of its own."""
    assert not rng.find_generators({"a": [torch.default_generator, np.random.mtrand._rand, random.random]}).found


def test_a_generator_that_is_gone_or_new_is_reported() -> None:
    """One that was saved and is not found is refused by path; one that was not saved is absent; others come back."""
    saved = stored({"a": {"old": random.Random(1), "same": random.Random(2)}})
    saved["parts"].clear()
    report = restore({"a": {"new": random.Random(1), "same": random.Random(9)}}, saved)
    outcome = {part.name: part.status for part in report.parts if "[" in part.name}
    assert outcome == {
        "generator a['old']": "refused",
        "generator a['same']": "restored",
        "generator a['new']": "absent",
    }


def test_a_search_has_a_bound_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that meets too many objects stops, and the report has a note."""
    monkeypatch.setattr(rng, "LIMIT", 20)
    parts = {"big": [[i] for i in range(30)]}
    assert not rng.find_generators(parts).complete
    assert "register others by name" in restore(parts, stored(parts)).notes[0]


def test_missing_devices_are_refused_and_the_rest_restored() -> None:
    """States of devices that are not here are refused; what comes after them is restored all the same."""
    saved = stored({})
    saved["generators"]["global"] = {"cuda": [torch.zeros(16, dtype=torch.uint8)] * 99} | saved["generators"]["global"]
    saved["generators"]["global"]["cuda"] = [torch.zeros(16, dtype=torch.uint8)] * 99
    expected = draw()
    report = restore({}, saved)
    assert [part.name for part in report.of("refused")] == ["generator cuda"]
    assert "the generators of 99 CUDA devices were saved" in report.of("refused")[0].detail
    assert draw() == expected


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an accelerator")
def test_a_devices_generator_comes_back() -> None:
    """A CUDA generator, global or registered, draws the same again."""
    own = torch.Generator("cuda").manual_seed(3)
    torch.rand(3, device="cuda")
    saved = stored({"own": own})
    expected = [torch.rand(3, device="cuda").tolist(), torch.rand(3, device="cuda", generator=own).tolist()]
    assert restore({"own": own}, saved).complete
    assert [torch.rand(3, device="cuda").tolist(), torch.rand(3, device="cuda", generator=own).tolist()] == expected


def test_a_search_runs_no_code_of_keys_and_objects() -> None:
    """A key that cannot be printed and an object that answers for its attributes are passed by."""

    class Loud:
        def __repr__(self) -> str:
            raise AssertionError

        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(name)

    loud = Loud()
    assert [path for path, _ in rng.find_generators({"a": {loud: [random.Random(1)], "b": loud}}).found] == ["a#0[0]"]
