"""Loaders that are not ours: exact where that is said, and named where it is not."""

import json
import warnings
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from data_samples import rows
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from bitproof.data import InexactResumeWarning, Loader, ShuffleBuffer, carry, measure_resume
from bitproof.data.errors import LoaderStateError, NotCarriedError, StaleIteratorError

N = 23

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata 0.11 calls it


class Augmented(Dataset[torch.Tensor]):
    """Samples that draw from torch's global generator; counts what is read."""

    def __init__(self) -> None:
        self.reads = 0

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> torch.Tensor:
        self.reads += 1
        return torch.tensor([index, torch.rand(1, dtype=torch.float64).item()], dtype=torch.float64)


def shuffled(data: Augmented) -> DataLoader[Any]:
    """Shuffled from torch's global generator."""
    return DataLoader(data, batch_size=4, shuffle=True)


def own_generator(data: Augmented) -> DataLoader[Any]:
    """Shuffled from a generator of the user's."""
    return DataLoader(data, batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(8))


def own_sampler(data: Augmented) -> DataLoader[Any]:
    """Shuffled by a sampler with a generator of its own."""
    return DataLoader(data, batch_size=4, sampler=RandomSampler(data, generator=torch.Generator().manual_seed(8)))


def sequential(data: Augmented) -> DataLoader[Any]:
    """In sequence."""
    return DataLoader(data, batch_size=4, drop_last=True)


def distributed(data: Augmented) -> DataLoader[Any]:
    """One of two ranks."""
    return DataLoader(data, batch_size=4, sampler=DistributedSampler(data, num_replicas=2, rank=1, seed=3))


def stateful(data: Augmented) -> Any:
    """torchdata's, without workers."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(data, batch_size=4, shuffle=True)


def train(carried: Any, steps: list[Any], *, epochs: int, stop: int | None = None) -> tuple[Any, Any] | None:
    """Take batches and draw, as a training step does; at `stop`, return the states that a checkpoint would hold."""
    for _ in range(epochs):
        for batch in carried:
            steps.append((rows(batch), torch.rand(1).item()))
            if len(steps) == stop:
                return carried.state_dict(), torch.get_rng_state()
    return None


@pytest.mark.parametrize("stop", [1, 2, 3, 5, 6, 7, 8])
@pytest.mark.parametrize("make", [shuffled, own_generator, own_sampler, sequential, distributed, stateful])
def test_exact(make: Any, stop: int) -> None:
    """Indices, augmentation and the loop's own draws are those of the uninterrupted run, to the end."""
    torch.manual_seed(5)
    whole: list[Any] = []
    train(carry(make(Augmented())), whole, epochs=3)

    torch.manual_seed(5)
    legs: list[Any] = []
    state, generator = train(carry(make(Augmented())), legs, epochs=3, stop=stop) or (None, None)
    torch.manual_seed(77)
    resumed = carry(make(Augmented()))
    torch.set_rng_state(generator)
    resumed.load_state_dict(state)
    per_epoch = next(
        i for i, (batch, _) in enumerate(whole) if i and batch[0][0] in {row[0] for row in flat(whole[:i])}
    )
    train(resumed, legs, epochs=3 - (stop - 1) // per_epoch)

    assert resumed.limits == ()
    assert legs == whole


def flat(steps: list[Any]) -> list[tuple[float, ...]]:
    """All samples of some steps."""
    return [row for batch, _ in steps for row in batch]


def test_nothing_is_fetched_for_skipped_batches() -> None:
    """Replaying a sampler reads only the samples that are left."""
    first, data = carry(shuffled(Augmented())), Augmented()
    list(islice(first, 4))
    second = carry(shuffled(data))
    second.load_state_dict(first.state_dict())
    list(second)

    assert data.reads == N - 16


def test_wrapping_does_not_change_the_run() -> None:
    """A carried loader gives what the plain loader gives, draw for draw."""
    found = []
    for wrap in (carry, lambda loader: loader):
        torch.manual_seed(5)
        loader = wrap(shuffled(Augmented()))
        found.append([rows(batch) for _ in range(2) for batch in loader])

    assert found[0] == found[1]


@pytest.mark.parametrize("make", [shuffled, stateful])
def test_iter_before_load(make: Any) -> None:
    """An iterator made before a state is loaded starts at the state; a started one is refused."""
    first, second = carry(make(Augmented())), carry(make(Augmented()))
    list(islice(first, 2))
    fresh = iter(second)
    second.load_state_dict(first.state_dict())
    assert len(list(fresh)) == 4

    started = iter(second)
    next(started)
    second.load_state_dict(first.state_dict())
    with pytest.raises(StaleIteratorError, match=r"Make a new one"):
        next(started)


def test_stateful_with_workers() -> None:
    """With workers, torchdata's loader keeps the order and loses the augmentation, and both are said."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    def make() -> Any:
        return StatefulDataLoader(Augmented(), batch_size=4, shuffle=True, num_workers=2)

    with pytest.warns(InexactResumeWarning, match=r"2 workers are in no state.*augmentation"):
        first, second = carry(make()), carry(make())
    torch.manual_seed(5)
    iterator = iter(first)
    list(islice(iterator, 2))
    state = first.state_dict()
    rest = [rows(batch) for batch in iterator]
    second.load_state_dict(state)
    resumed = [rows(batch) for batch in second]

    assert [[row[0] for row in batch] for batch in resumed] == [[row[0] for row in batch] for batch in rest]
    assert resumed != rest


def test_stateful_other_worker_count() -> None:
    """Another number of workers is refused with both numbers, where torchdata's message is empty."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    with warnings.catch_warnings(action="ignore", category=InexactResumeWarning):
        one, two = (carry(StatefulDataLoader(Augmented(), num_workers=w)) for w in (0, 1))
    with pytest.raises(
        LoaderStateError, match=r"num_workers was 0 when it was saved and is 1 now.*Resume with 0 workers"
    ):
        two.load_state_dict(one.state_dict())


def hugging_face(buffer: int | None = None) -> Any:
    """A stream of 40 samples."""
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"i": list(range(40))}).to_iterable_dataset()
    return data.shuffle(seed=1, buffer_size=buffer) if buffer else data


def numbers(loader: Any, batches: int | None = None) -> list[int]:
    """Read samples of a stream of numbers."""
    return [int(i) for batch in islice(loader, batches) for i in (batch["i"] if isinstance(batch, dict) else batch)]


def test_hugging_face_in_sequence() -> None:
    """A Hugging Face stream without a shuffle buffer is carried exactly, and its later passes are whole."""
    first, second = (carry(DataLoader(hugging_face(), batch_size=4)) for _ in range(2))
    before = numbers(first, 3)
    state = json.loads(json.dumps(first.state_dict()))
    second.load_state_dict(state)

    assert before + numbers(second) == list(range(40))
    assert numbers(second) == list(range(40))
    assert numbers(second, 2) == list(range(8))


def test_hugging_face_twice() -> None:
    """A stream that is resumed twice in one pass goes on after the second stop."""
    found, state = [], None
    for batches in (2, 3, None):
        carried = carry(DataLoader(hugging_face(), batch_size=4))
        if state:
            carried.load_state_dict(state)
        found += numbers(carried, batches)
        state = carried.state_dict()

    assert found == list(range(40))


def test_hugging_face_shuffle_buffer() -> None:
    """What a Hugging Face shuffle buffer loses is measured, and named with its number."""
    interrupted, resumed = hugging_face(buffer=8), hugging_face(buffer=8)
    seen = [sample["i"] for sample in islice(interrupted, 20)]
    resumed.load_state_dict(interrupted.state_dict())
    seen += [sample["i"] for sample in resumed]
    lost = 40 - len(set(seen))
    assert lost > 0

    with pytest.warns(
        InexactResumeWarning, match=rf"{lost} of 40 samples would never be seen.*ShuffleBuffer"
    ) as caught:
        carried = carry(DataLoader(hugging_face(buffer=8), batch_size=4))

    assert carried.limits == (str(caught[0].message).split(": ", 1)[1],)


class Buffered(IterableDataset[int]):
    """A shuffle buffer whose state is the position of its source only, as many are."""

    def __init__(self) -> None:
        self.position = 0

    def __iter__(self) -> Iterator[int]:
        buffer: list[int] = []
        for number in range(self.position, 40):
            self.position = number + 1
            buffer.append(number)
            if len(buffer) > 8:
                yield buffer.pop(0)
        yield from buffer

    def state_dict(self) -> dict[str, int]:
        """Say how much was read."""
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on reading there, with an empty buffer."""
        self.position = state["position"]


def test_position_only_state() -> None:
    """A state that is the source's position loses the whole buffer, and that is said."""
    with pytest.warns(InexactResumeWarning, match=r"8 of 40 samples would never be seen"):
        carry(DataLoader(Buffered(), batch_size=4))


def test_exact_shuffle_of_a_hugging_face_stream() -> None:
    """Our shuffle buffer over a Hugging Face stream loses nothing."""
    loss = measure_resume(ShuffleBuffer(hugging_face(), size=8, seed=1))

    assert loss.exact
    assert str(loss) == "resumed after 20 samples: the first 40 are the same"


class Frozen(IterableDataset[int]):
    """A stream whose state always says the start."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(40))

    def state_dict(self) -> dict[str, int]:
        """Say nothing of the position."""
        return {"at": 0}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Take nothing."""


def test_state_that_does_not_advance() -> None:
    """A stream whose state restarts it is found out: what comes again is counted."""
    with pytest.warns(InexactResumeWarning, match=r"20 of 40 samples would never be seen, 20 would be seen twice"):
        carry(DataLoader(Frozen(), batch_size=4))


def test_not_measured() -> None:
    """A stream that is not measured is said to be not measured."""
    with pytest.warns(InexactResumeWarning, match=r"was not measured"):
        carry(DataLoader(Frozen(), batch_size=4), probe=0)


def test_not_measurable() -> None:
    """A stream that cannot be copied is said to be so, with the reason."""

    class Uncopyable(Frozen):
        def __deepcopy__(self, memo: Any) -> Any:
            raise OSError("an open file")

    with pytest.warns(InexactResumeWarning, match=r"could not be measured .*OSError: an open file"):
        carry(DataLoader(Uncopyable(), batch_size=4))


def test_our_loader_carries_itself() -> None:
    """A bitproof Loader is returned as it is; without sample randomness its limit is named."""
    ours = Loader([1, 2], 1)

    assert carry(ours) is ours
    with pytest.warns(InexactResumeWarning, match=r"sample_randomness=False"):
        carry(Loader([1, 2], 1, sample_randomness=False))


@pytest.mark.parametrize(
    ("loader", "message"),
    [
        (DataLoader(TensorDataset(torch.arange(4)), num_workers=2), r"num_workers=2 .*Loader.from_torch\(loader\)"),
        (DataLoader(Frozen(), num_workers=1), "num_workers=1 .*StatefulDataLoader with the same number"),
        (DataLoader([1, 2], sampler=WeightedRandomSampler([1.0, 1.0], 2)), "WeightedRandomSampler.*Mixture"),
        ([1, 2], "list is no DataLoader.*bitproof.data.Loader"),
    ],
)
def test_refused(loader: Any, message: str) -> None:
    """What cannot be carried is refused with the reason and the remedy."""
    with pytest.raises(NotCarriedError, match=message):
        carry(loader)


def test_stream_without_state() -> None:
    """A stream without a state is refused."""

    class Plain(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(4))

    with pytest.raises(NotCarriedError, match=r"Plain is iterable-style.*state_dict"):
        carry(DataLoader(Plain()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"settings": {"batch_size": 8, "drop_last": False}}, "batch_size was 8 when it was saved and is 4 now"),
        ({"settings": {"batch_size": 4, "drop_last": True}}, "drop_last was True when it was saved and is False now"),
        ({"settings": {"batch_size": 4}}, "drop_last was 'not set' when it was saved and is False now"),
        ({"length": 5}, "length was 5 .* is 23 now"),
        ({"sampler": "SequentialSampler"}, "sampler was 'SequentialSampler' .* 'RandomSampler' now"),
        ({"kind": "stream"}, "kind is 'stream', expected 'sampler'"),
        ({"format": 1}, "format is 1, expected 2"),
        ({"batches": "3"}, "field 'batches' must be int, found '3'"),
        ({"generator": [1]}, "field 'generator' must be Tensor or NoneType, found"),
    ],
)
def test_state_of_other_settings(change: dict[str, Any], message: str) -> None:
    """A state of other settings, or a damaged one, is refused with both values."""
    carried = carry(shuffled(Augmented()))
    with pytest.raises(LoaderStateError, match=message):
        carried.load_state_dict({**carried.state_dict(), **change})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_replicas": 3}, "num_replicas was 2 when it was saved and is 3 now"),
        ({"seed": 4}, "seed was 3 when it was saved and is 4 now"),
        ({"shuffle": False}, "shuffle was True when it was saved and is False now"),
        ({"drop_last": True}, "sampler_drop_last was False when it was saved and is True now"),
    ],
)
def test_state_of_another_distributed_sampler(options: dict[str, Any], message: str) -> None:
    """What the order of a distributed sampler depends on is in the state, and refused where it differs."""
    data = Augmented()
    sampler = DistributedSampler(data, **{"num_replicas": 2, "rank": 1, "seed": 3, **options})
    carried = carry(DataLoader(data, batch_size=4, sampler=sampler))
    with pytest.raises(LoaderStateError, match=message):
        carried.load_state_dict(carry(distributed(Augmented())).state_dict())


@pytest.mark.parametrize("state", [None, [1], {}, {"format": 2, "kind": "sampler"}])
def test_no_state(state: Any) -> None:
    """Something else than a state is refused, not taken for one."""
    with pytest.raises(LoaderStateError, match=r"loader state: (expected the mapping|format is None|field 'sampler')"):
        carry(shuffled(Augmented())).load_state_dict(state)


def test_golden_state() -> None:
    """The stored state has these fields and values; a change of either is a change of format."""
    carried = carry(distributed(Augmented()))
    next(iter(carried))

    assert carried.state_dict() == {
        "format": 2,
        "kind": "sampler",
        "sampler": "DistributedSampler",
        "settings": {
            "batch_size": 4,
            "drop_last": False,
            "num_replicas": 2,
            "shuffle": True,
            "seed": 3,
            "sampler_drop_last": False,
        },
        "length": N,
        "batches": 1,
        "epoch": 0,
        "generator": None,
    }


@pytest.mark.parametrize("make", [shuffled, own_generator, own_sampler, sequential, distributed, stateful])
def test_three_legs(make: Any) -> None:
    """Two resumes in one epoch are as good as none."""
    torch.manual_seed(5)
    whole: list[Any] = []
    train(carry(make(Augmented())), whole, epochs=2)

    torch.manual_seed(5)
    legs: list[Any] = []
    saved = train(carry(make(Augmented())), legs, epochs=2, stop=1)
    for stop in (2, None):
        torch.manual_seed(77)
        resumed = carry(make(Augmented()))
        assert saved is not None
        torch.set_rng_state(saved[1])
        resumed.load_state_dict(saved[0])
        saved = train(resumed, legs, epochs=2, stop=stop)

    assert legs == whole
