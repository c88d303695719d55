"""Mixtures: exact counts, random access, resume, errors."""

from collections import Counter
from typing import Any

import pytest
from data_samples import read

from bitproof.data import Loader, Mixture
from bitproof.data.errors import DataChangedError, DataLengthError, MixtureError, PositionError

A, B = [[i] for i in range(9)], [[100 + i] for i in range(3)]

GOLDEN = [
    ("code", 2),
    ("web", 7),
    ("web", 6),
    ("web", 8),
    ("code", 0),
    ("web", 2),
    ("web", 4),
    ("web", 5),
    ("code", 1),
    ("web", 0),
    ("web", 3),
    ("web", 1),
]


def mixture(**options: Any) -> Mixture:
    """Nine samples of weight 3 and three of weight 1."""
    return Mixture({"web": A, "code": B}, **{"weights": {"web": 3, "code": 1}, "seed": 0, **options})


def test_golden() -> None:
    """The order that a stored state stands for never changes within an order version."""
    assert [mixture().source_at(position) for position in range(12)] == GOLDEN


@pytest.mark.parametrize("block_size", [4, 8, 40])
def test_exact_counts(block_size: int) -> None:
    """Every block has exactly its share of each source, in an order of its own."""
    mixed = mixture(block_size=block_size)
    blocks = [
        [mixed.source_at(position)[0] for position in range(start, start + block_size)]
        for start in range(0, 10 * block_size, block_size)
    ]

    assert all(Counter(block) == {"web": block_size * 3 // 4, "code": block_size // 4} for block in blocks)
    assert len({tuple(block) for block in blocks}) > 1


def test_sources_go_through_epochs() -> None:
    """Each source's draws are its own endless epochs, each sample once an epoch."""
    mixed = mixture()
    web = [index for name, index in map(mixed.source_at, range(24)) if name == "web"]

    assert sorted(web[:9]) == sorted(web[9:18]) == list(range(9))
    assert web[:9] != web[9:18]


def test_pass_reads_every_sample() -> None:
    """A pass takes at least as many draws of each source as it has samples."""
    mixed = Mixture({"a": list(range(10)), "b": list(range(7))}, weights={"a": 1, "b": 2}, seed=1)

    assert mixed.n == 30
    assert {mixed.source_at(position) for position in range(30)} == {
        *(("a", i) for i in range(10)),
        *(("b", i) for i in range(7)),
    }


def test_random_access_is_cheap() -> None:
    """A position far into a mixture of huge sources is found at once."""

    class Huge:
        def __len__(self) -> int:
            return 10**12

        def __getitem__(self, index: int) -> int:
            return index

    mixed = Mixture({"a": Huge(), "b": Huge()}, weights={"a": 3, "b": 1}, seed=0)

    assert mixed.source_at(10**12)[0] in {"a", "b"}


def test_loader_over_a_mixture() -> None:
    """A Loader reads a mixture by its order, and resumes in the middle."""
    whole = read(Loader(mixture(), 4, collate_fn=list_batch))
    first, second = (Loader(mixture(), 4, collate_fn=list_batch, num_workers=w) for w in (0, 1))
    before = read(first, 1)
    second.load_state_dict(first.state_dict())

    assert before + read(second) == whole
    names = [mixture().source_at(position) for position in range(12)]
    assert [row for batch in whole for row in batch] == [tuple(A[i] if n == "web" else B[i]) for n, i in names]


class list_batch(list[Any]):  # noqa: N801 - used as a collate function
    """A batch as a list."""

    def tolist(self) -> list[Any]:
        """As a tensor would."""
        return list(self)


def test_other_weights_are_other_data() -> None:
    """A state does not resume under other weights."""
    state = Loader(mixture(), 4, collate_fn=list_batch).state_dict()
    with pytest.raises(DataChangedError):
        Loader(mixture(weights={"web": 6, "code": 2}), 4, collate_fn=list_batch).load_state_dict(state)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"weights": {"web": 1}}, MixtureError, r"sources are \['code', 'web'\] and weights are for \['web'\]"),
        (
            {"weights": {"web": 0.75, "code": 0.25}},
            MixtureError,
            "of 'web' must be a whole number .* found 0.75.*3 and 1",
        ),
        ({"weights": {"web": 0, "code": 1}}, MixtureError, "of 1 or more, found 0"),
        ({"block_size": 6}, MixtureError, "multiple of the sum of weights, 4, found 6. Use 8"),
    ],
)
def test_bad_mixtures(options: dict[str, Any], error: type[Exception], message: str) -> None:
    """Weights and blocks that cannot be are refused with the values and a remedy."""
    with pytest.raises(error, match=message):
        mixture(**options)


def test_empty_source() -> None:
    """A source without samples is named."""
    with pytest.raises(DataLengthError, match="source 'b' has 0 samples"):
        Mixture({"a": [1], "b": []}, weights={"a": 1, "b": 1})


def test_index_out_of_range() -> None:
    """An index outside all sources is refused."""
    with pytest.raises(PositionError, match="from 0 to 11, found 12"):
        mixture()[12]
    with pytest.raises(PositionError, match="found -1"):
        mixture().locate([-1])
