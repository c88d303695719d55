"""The exact shuffle buffer."""

import json
from itertools import islice
from typing import Any

import pytest

from bitproof.data import ShuffleBuffer
from bitproof.data.errors import BatchError, LoaderStateError


class Counting:
    """Numbers 0 … n − 1 with a state, which it goes on to change after giving it out."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.state = {"next": 0}

    def __iter__(self) -> Any:
        while self.state["next"] < self.n:
            self.state["next"] += 1
            yield self.state["next"] - 1
        self.state["next"] = 0

    def state_dict(self) -> dict[str, int]:
        """Give out the live state."""
        return self.state

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Take the state as it is."""
        self.state = state


def test_golden() -> None:
    """The order that a stored state stands for never changes within an order version."""
    assert list(ShuffleBuffer(range(12), size=4, seed=0)) == [3, 0, 5, 4, 6, 7, 2, 9, 11, 8, 1, 10]


@pytest.mark.parametrize("source", [lambda: Counting(30), lambda: range(30)], ids=["with a state", "without"])
@pytest.mark.parametrize("stop", [0, 1, 7, 22, 29, 30])
def test_exact_resume(source: Any, stop: int) -> None:
    """A resume anywhere goes on with the same samples, into the next epochs."""
    whole = ShuffleBuffer(source(), size=8, seed=1)
    expected = [list(whole) for _ in range(3)]
    first, second = (ShuffleBuffer(source(), size=8, seed=seed) for seed in (1, 99))
    iterator = iter(first)
    before = list(islice(iterator, stop))
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))

    assert before + list(second) == expected[0]
    assert [list(second), list(second)] == expected[1:]


def test_is_a_shuffle() -> None:
    """Each epoch has each sample once, in an order of its own."""
    buffer = ShuffleBuffer(range(30), size=8, seed=1)
    epochs = [list(buffer) for _ in range(3)]

    assert all(sorted(epoch) == list(range(30)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_a_state_does_not_change_afterwards() -> None:
    """A state that was given out stays as it was while the stream goes on."""
    buffer = ShuffleBuffer(Counting(30), size=8, seed=1)
    iterator = iter(buffer)
    list(islice(iterator, 5))
    state = buffer.state_dict()
    before = json.dumps(state)
    list(iterator)

    assert json.dumps(state) == before


def test_bad_size() -> None:
    """A buffer without room is refused."""
    with pytest.raises(BatchError, match=r"size must be 1 or more, found 0"):
        ShuffleBuffer([1], size=0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"size": 9}, "size is 9, expected 8"),
        ({"order_version": 0}, "order_version is 0"),
        ({"format": 3}, "format is 3"),
    ],
)
def test_bad_state(change: dict[str, Any], message: str) -> None:
    """A state of another size or version is refused with both values."""
    buffer = ShuffleBuffer([1], size=8)
    with pytest.raises(LoaderStateError, match=message):
        buffer.load_state_dict({**buffer.state_dict(), **change})


def test_no_buffer_state() -> None:
    """Something else than a buffer's state is refused by its missing fields."""
    with pytest.raises(LoaderStateError, match=r"'buffer'.* are missing, found"):
        ShuffleBuffer([1], size=8).load_state_dict({"size": 8})
