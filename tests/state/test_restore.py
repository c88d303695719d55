"""Saved values go into live objects in place."""

import collections
import random
from typing import Any

import numpy as np
import pytest
import torch

from bitproof.state import StateMismatchError, restore_into
from bitproof.state.generators import restore_generator
from bitproof.state.restore import differences, same_bits


def test_containers_tensors_and_arrays_keep_their_identity() -> None:
    """Whatever can be overwritten is, at any depth, so that other holders see it."""
    tensor, array, inner, queue, items = torch.zeros(2), np.zeros(2), [0], collections.deque([1], 3), {1}
    live = {"t": tensor, "a": array, "l": [inner], "q": queue, "s": items, "gone": 1}
    saved = {
        "t": torch.ones(2),
        "a": np.ones(2),
        "l": [[5, 6]],
        "q": collections.deque([2], 3),
        "s": {2},
        "n": (1, [2]),
    }
    assert restore_into(live, saved) is live
    assert not list(differences(saved, live))
    assert live["t"] is tensor
    assert live["a"] is array
    assert live["l"][0] is inner
    assert live["q"] is queue
    assert live["s"] is items


def test_what_cannot_be_overwritten_is_replaced_by_a_copy() -> None:
    """Another dtype, shape or type gives a new object that shares nothing with the saved one."""
    saved = {"t": torch.ones(2, dtype=torch.float64), "a": np.ones(3), "l": [1], "rng": random.Random(1)}
    live = restore_into({"t": torch.zeros(2), "a": np.zeros(2), "l": (0,), "rng": None}, saved)
    assert same_bits(live["t"], saved["t"])
    for value in saved.values():
        assert all(value is not other for other in live.values())
    live["t"][0] = 5
    live["a"][0] = 5
    live["l"].append(2)
    live["rng"].random()
    assert saved["t"][0] == 1
    assert saved["a"][0] == 1
    assert saved["l"] == [1]
    assert saved["rng"].random() == random.Random(1).random()


def test_sharing_follows_the_saved_tree() -> None:
    """What was one object is one object; what was two never ends in one, though the live tree has one there."""
    both, one = torch.ones(1), [1]
    live = restore_into(
        {"a": torch.zeros(1), "b": torch.zeros(1), "x": [0], "y": [0]}, {"a": both, "b": both, "x": one, "y": one}
    )
    assert live["a"] is live["b"]
    assert live["x"] is live["y"]
    shared = torch.zeros(1)
    live = restore_into([shared, shared], [torch.tensor([1.0]), torch.tensor([2.0])])
    assert [t.item() for t in live] == [1, 2]
    assert live[0] is shared


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (torch.tensor([0.0]), torch.tensor([-0.0])),
        (torch.ones(1), torch.ones(1, dtype=torch.float64)),
        (torch.ones(1), torch.ones(1, 1)),
        (0.0, -0.0),
        (1, True),
        ([1], (1,)),
        ({"a": 1}, {"b": 1}),
        ([1], [1, 2]),
        (np.zeros(1), -np.zeros(1)),
        ({0.0}, {-0.0}),
        (random.Random(1), random.Random(2)),
        (None, 0),
    ],
)
def test_any_bit_or_type_is_a_difference(a: Any, b: Any) -> None:
    """Equal means equal bits, types and shapes; a thing equals itself, NaN too."""
    assert list(differences({"x": a}, {"x": b}))
    assert not list(differences({"x": a, "nan": float("nan")}, {"x": a, "nan": float("nan")}))


def test_a_difference_says_place_and_both_values() -> None:
    """One line a place, with what was saved and what is live."""
    lines = list(differences({"a": [1, torch.tensor(2.0)]}, {"a": [3, torch.tensor(2)]}))
    assert lines == [
        "state['a'][0]: saved 1, live 3",
        "state['a'][1]: saved float32 of shape [] with value 2.0, live int64 of shape [] with value 2",
    ]


def test_a_generator_that_has_spawned_is_run_forward_or_refused() -> None:
    """The next child is the saved run's; a generator from another seed, or one that is ahead, cannot be put back."""
    saved, live = np.random.default_rng(1), np.random.default_rng(1)
    saved.spawn(2)
    restore_generator(live, saved)
    assert live.spawn(1)[0].random() == saved.spawn(1)[0].random()
    live.spawn(1)
    with pytest.raises(StateMismatchError, match="has spawned children, and its seed sequence cannot be put back"):
        restore_generator(live, saved)
    with pytest.raises(StateMismatchError, match="Make it from the same seed before restoring"):
        restore_generator(np.random.default_rng(2), saved)
