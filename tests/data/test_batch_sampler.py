"""The user's own batch sampler: exact after any resume, shared among any ranks, and refused where it cannot be."""

import contextlib
import json
import math
import random
from collections import Counter
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from data_samples import Drawing, read, rows
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, RandomSampler, Sampler, WeightedRandomSampler

import bitproof
from bitproof.data import Loader, Topology, audit
from bitproof.data.errors import (
    BatchError,
    DataChangedError,
    LoaderStateError,
    NotCarriedError,
    OrderVersionError,
    TopologyError,
)

N = 26
ALL_WORKERS = "ignore:This DataLoader will create:UserWarning"  # more workers than this machine has cores


class Buckets(Sampler[list[int]]):
    """Batches of samples of similar length, in another order each epoch, as speech and text models are trained."""

    def __init__(self, n: int = N, size: int = 4) -> None:
        self.n, self.size = n, size

    def __iter__(self) -> Iterator[list[int]]:
        noise = np.random.random_sample(self.n)  # noqa: NPY002
        by_length = np.argsort(np.arange(self.n) % 7 + noise, kind="stable").tolist()
        batches = [by_length[start : start + self.size] for start in range(0, self.n, self.size)]
        random.shuffle(batches)
        yield from batches

    def __len__(self) -> int:
        return math.ceil(self.n / self.size)


class ByEpoch(Buckets):
    """Draws from a generator made anew from the epoch that it is told, and yields tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        generator = torch.Generator().manual_seed(100 + self.epoch)
        yield from torch.randperm(self.n, generator=generator).split(self.size)


class Lazy(Buckets):
    """Draws while it is iterated, from all three generators, with normal draws that are kept in pairs."""

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(len(self)):
            scores = [np.random.standard_normal() + random.gauss(0, 1) + torch.rand(1).item() for _ in range(3)]  # noqa: NPY002
            yield [int(abs(score) * 1e6) % self.n for score in scores]


class Stateful(Buckets):
    """Draws from a generator of its own, which is its state."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = np.random.default_rng(0)

    def __iter__(self) -> Iterator[list[int]]:
        yield from (part.tolist() for part in np.array_split(self.generator.permutation(self.n), 7))

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self.generator.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.generator.bit_generator.state = state["generator"]


class OwnGenerator(Buckets):
    """Draws from a generator of its own that is in no state."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = np.random.default_rng(0)

    def __iter__(self) -> Iterator[list[int]]:
        yield from (part.tolist() for part in np.array_split(self.generator.permutation(self.n), 7))


def of_random() -> Any:
    """The sampler of torch itself, over a random sampler."""
    return BatchSampler(RandomSampler(range(N)), 4, drop_last=False)


def of_weights() -> Any:
    """The sampler of torch itself, drawing by weight, some samples more than once an epoch."""
    return BatchSampler(WeightedRandomSampler([1.0 + index for index in range(N)], N), 4, drop_last=True)


def torchdata_sampler() -> Any:
    """torchdata's, with a state of its own."""
    module = pytest.importorskip("torchdata.stateful_dataloader.sampler")
    return module.BatchSampler(
        module.RandomSampler(range(N), generator=torch.Generator().manual_seed(4)), 4, drop_last=False
    )


KINDS = [Buckets, ByEpoch, Lazy, Stateful, of_random, of_weights, torchdata_sampler]


def loader(batch_sampler: Any, **options: Any) -> Loader:
    """A loader that shows what its samples draw."""
    return Loader(Drawing(N), batch_sampler=batch_sampler, **{"seed": 3, "fingerprint": "known", **options})


def train(held: Loader, stop: int | None = None, epochs: int = 3) -> list[Any]:
    """Take batches, drawing between them as a training step does; to the end, or for some steps."""
    steps: list[Any] = []
    for epoch in range(held.epoch, epochs):
        for batch in held:
            steps.append((epoch, rows(batch)))
            random.random(), np.random.standard_normal(), torch.rand(1)  # noqa: NPY002
            if len(steps) == stop:
                return steps
    return steps


@pytest.mark.parametrize("make", KINDS)
def test_stop_at_every_batch(make: Any) -> None:
    """A loop over epochs, stopped after any batch, goes on with the same samples and augmentation to the end."""
    whole = train(loader(make()))
    assert len(whole) == 3 * len(make())
    assert len({tuple(sample) for _, batch in whole for sample in batch}) == sum(len(batch) for _, batch in whole)

    for stop in range(1, len(whole)):
        first, second = loader(make()), loader(make(), seed=9)
        before = train(first, stop)
        random.seed(stop), np.random.seed(stop), torch.manual_seed(stop)  # noqa: NPY002
        second.load_state_dict(first.state_dict())
        assert before + train(second) == whole, stop


def test_three_legs_and_broken_off_loops() -> None:
    """Two resumes in one epoch, and loops that are left early, are as good as none."""
    whole = train(loader(Buckets()))
    held, found = loader(Buckets()), []
    found += [(0, rows(batch)) for batch in islice(held, 2)] + [(0, rows(batch)) for batch in islice(held, 1)]
    for _ in range(2):
        state = json.loads(json.dumps(held.state_dict()))
        held = loader(Buckets(), num_workers=1)
        held.load_state_dict(state)
        found += train(held, 2)

    assert found == whole[:7]


@pytest.mark.filterwarnings(ALL_WORKERS)
@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("world_size", [1, 2])
def test_topologies(world_size: int, workers: int) -> None:
    """Ranks share each batch, disjoint and complete, and samples are augmented alike under any workers and ranks."""
    expected = [batch for _, batch in train(loader(Buckets()), epochs=2)]
    passes = [
        [
            batch
            for _, batch in train(
                loader(
                    Buckets(), rank=rank, world_size=world_size, num_workers=workers, persistent_workers=workers > 1
                ),
                epochs=2,
            )
        ]
        for rank in range(world_size)
    ]

    for number, shares in enumerate(zip(*passes, strict=True)):
        together: list[Any] = [None] * len(expected[number])
        for rank, share in enumerate(shares):
            together[rank::world_size] = share
        assert together == expected[number]


def test_resume_with_other_ranks() -> None:
    """A state of one process goes on with two, at the same batch."""
    whole = train(loader(Buckets()), epochs=1)
    first = loader(Buckets())
    before = train(first, 3)
    ranks = [loader(Buckets(), rank=rank, world_size=2) for rank in range(2)]
    for rank in ranks:
        rank.load_state_dict(first.state_dict())
    after = [sorted(map(tuple, a + b)) for a, b in zip(*map(read, ranks), strict=True)]

    assert [sorted(batch) for _, batch in before] + after == [sorted(batch) for _, batch in whole]


def test_surrounding_generators_are_put_back() -> None:
    """What the sampler draws leaves python's, NumPy's and torch's generators as they were."""
    random.seed(1), np.random.seed(1), torch.manual_seed(1)  # noqa: NPY002
    random.gauss(0, 1), np.random.standard_normal()  # noqa: NPY002 - each keeps a second draw
    before = random.getstate(), repr(np.random.get_state()), torch.get_rng_state()  # noqa: NPY002
    read(loader(Lazy()))

    assert (random.getstate(), repr(np.random.get_state())) == before[:2]  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), before[2])


def test_a_sample_drawn_twice() -> None:
    """A sample that is drawn again in an epoch is augmented anew, and the same way after a resume."""
    held = loader([[5, 5], [5]])
    found = [row for batch in read(held) for row in batch]

    assert [row[0] for row in found] == [5, 5, 5]
    assert len(set(found)) == 3
    assert held.last_samples == ((0, 5),)
    resumed = loader([[5, 5], [5]])
    resumed.load_state_dict({**held.state_dict(), "epoch": 0, "batch": 0, "sample": 0})
    assert [row for batch in read(resumed) for row in batch] == found


def test_nothing_is_read_for_batches_passed_over() -> None:
    """A resume draws the indices of earlier batches again, and reads none of their samples."""

    class Counted(Drawing):
        reads: ClassVar[Counter[int]] = Counter()

        def __getitem__(self, index: int) -> torch.Tensor:
            self.reads[index] += 1
            return super().__getitem__(index)

    first = loader(Buckets())
    list(islice(first, 5))
    second = Loader(Counted(N), batch_sampler=Buckets(), fingerprint="known")
    second.load_state_dict(first.state_dict())
    read(second)

    assert sum(Counted.reads.values()) == N - first.position


def test_endless_sampler() -> None:
    """A sampler without end and length is read as far as it is asked."""

    class Endless:
        def __iter__(self) -> Iterator[list[int]]:
            for _ in count():
                yield [random.randrange(N) for _ in range(3)]

    whole = read(loader(Endless()), 40)
    first, second = loader(Endless()), loader(Endless())
    before = read(first, 15)
    second.load_state_dict(first.state_dict())

    assert before + read(second, 25) == whole
    with pytest.raises(TypeError, match="has no len"):
        len(first)


GOLDEN_STATE = {
    "format": 1,
    "order_version": 2,
    "sampler": "Buckets",
    "num_replicas": 0,
    "seed": 3,
    "epoch": 0,
    "batch": 2,
    "sample": 8,
    "digest": "f35b89514306732e",
    "length": N,
    "fingerprint": "known",
    "start": None,
}


def golden_loader() -> Loader:
    """Two batches into the first epoch."""
    held = loader(Buckets())
    list(islice(held, 2))
    return held


def test_golden_state() -> None:
    """The stored state has these fields and values; a change of either is a change of format."""
    held = golden_loader()

    assert held.state_dict() == GOLDEN_STATE
    assert len(json.dumps(held.state_dict())) < 300
    assert (held.position, held.remaining, len(held), held.batch_size) == (8, 5, 7, None)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"order_version": 1}, OrderVersionError, "order_version is 1, this bitproof has 2"),
        ({"format": 2}, OrderVersionError, "format is 2, this bitproof has 1"),
        ({"sampler": "Other"}, LoaderStateError, "batch sampler was Other when it was saved and is Buckets now"),
        ({"num_replicas": 4}, LoaderStateError, r"made for 4 ranks when .* for no ranks now .*global batches"),
        ({"batch": -1}, LoaderStateError, "'batch' must be int of 0 or more, found -1"),
        ({"length": 30}, DataChangedError, "length was 30 .* is 26 now"),
        ({"fingerprint": "x"}, DataChangedError, "fingerprint was 'x' .* is 'known' now"),
        ({"speed": 1}, LoaderStateError, r"unknown fields \['speed'\]"),
    ],
)
def test_bad_state(change: dict[str, Any], error: type[Exception], message: str) -> None:
    """A state of other settings, or a damaged one, is refused by its field with both values."""
    with pytest.raises(error, match=message):
        loader(Buckets()).load_state_dict({**GOLDEN_STATE, **change})


@pytest.mark.parametrize(
    ("one", "other", "message"),
    [
        (Stateful, OwnGenerator, "had one of its own state when it was saved, and OwnGenerator has none now"),
        (OwnGenerator, Stateful, "had none of its own state when it was saved, and Stateful has one now"),
    ],
)
def test_state_of_the_sampler_itself(one: Any, other: Any, message: str) -> None:
    """A sampler that lost or gained a state of its own is refused."""
    state = {**loader(one()).state_dict(), "sampler": other.__name__}
    held = loader(other())
    held.load_state_dict(state)
    with pytest.raises(LoaderStateError, match=message):
        next(iter(held))


def test_state_of_another_kind_of_loader() -> None:
    """A state of a loader with a batch sampler does not fit one without, and the other way round."""
    plain = Loader(Drawing(N), 4, fingerprint="known")
    with pytest.raises(LoaderStateError, match=r"batch sampler Buckets, and this Loader has none.*batch_sampler="):
        plain.load_state_dict(golden_loader().state_dict())
    with pytest.raises(LoaderStateError, match=r"without a batch sampler, and this Loader has one.*batch_size="):
        loader(Buckets()).load_state_dict(plain.state_dict())


def test_other_settings_of_the_sampler() -> None:
    """A sampler that now gives other batches is found out on resume, before any sample is read."""
    held = loader(Buckets(size=5))
    held.load_state_dict(golden_loader().state_dict())
    with pytest.raises(LoaderStateError, match=r"2 batches of epoch 0 .* others \(digest \w+\).*settings"):
        next(iter(held))


def test_fewer_batches_than_before() -> None:
    """A sampler that ends before the place of the resume is found out."""
    held = loader([[1, 2]])
    first = loader([[1, 2], [3, 4]])
    read(first, 2)
    held.load_state_dict(first.state_dict())
    with pytest.raises(LoaderStateError, match=r"gave only 1"):
        next(iter(held))


def test_changed_data_accepted() -> None:
    """With accept_changed_data, the run goes on at the same batch of what the sampler gives now."""
    held = loader(Buckets(size=5))
    held.load_state_dict({**GOLDEN_STATE, "fingerprint": "x"}, accept_changed_data=True)

    assert read(held) == read(loader(Buckets(size=5)))[2:]


@pytest.mark.parametrize(
    "make",
    [
        OwnGenerator,
        lambda: BatchSampler(RandomSampler(range(N), generator=torch.Generator().manual_seed(1)), 4, drop_last=False),
    ],
)
def test_own_generator(make: Any) -> None:
    """A sampler whose batches do not follow from the epoch is refused before the first batch, with what to do."""
    with pytest.raises(NotCarriedError, match=r"not give the same batches twice.*batch 0 was \[.*global generators"):
        next(iter(loader(make())))


@pytest.mark.parametrize(
    ("sampler", "error", "message"),
    [
        ([], BatchError, "list gave no batch in epoch 0"),
        ([[]], BatchError, "gave an empty batch"),
        ([[0, N]], BatchError, f"gave index {N} for {N} samples: expected 0 to {N - 1}"),
        ([[-1]], BatchError, "gave index -1"),
        ([3, 4], BatchError, "gave 3: expected a list of whole numbers.*BatchSampler"),
        ([[(224, 1)]], BatchError, r"gave \[\(224, 1\)\]: expected a list of whole numbers"),
        ([["a"]], BatchError, "expected a list of whole numbers"),
    ],
)
def test_bad_batches(sampler: Any, error: type[Exception], message: str) -> None:
    """What a sampler cannot give is named, with what was found."""
    with pytest.raises(error, match=message):
        read(loader(sampler))


@pytest.mark.parametrize("options", [{"batch_size": 4}, {"shuffle": True}, {"drop_last": True}, {"cross_epochs": True}])
def test_settings_that_the_sampler_decides(options: dict[str, Any]) -> None:
    """batch_size, shuffle, drop_last and cross_epochs beside a batch sampler are refused."""
    with pytest.raises(BatchError, match=r"batch_sampler=Buckets decides.*Leave these out"):
        loader(Buckets(), **options)


def test_batch_smaller_than_the_ranks() -> None:
    """A batch that leaves ranks without a sample is refused on every rank alike."""
    for rank in range(3):
        with pytest.raises(BatchError, match=r"batch 1 of epoch 0 has 2 samples for 3 ranks.*fill or leave out"):
            read(loader([[0, 1, 2], [3, 4]], rank=rank, world_size=3))


def test_no_order_to_ask() -> None:
    """What only an order has is refused with the reason."""
    for name in ("order", "plan"):
        with pytest.raises(NotCarriedError, match=r"batches of Buckets: it has no order"):
            getattr(loader(Buckets()), name)


def of_rank(rank: int, replicas: int = 2) -> Any:
    """The sampler of torch itself, over one rank's share."""
    return BatchSampler(DistributedSampler(range(N), num_replicas=replicas, rank=rank, seed=3), 4, drop_last=False)


def test_sampler_of_one_rank() -> None:
    """A sampler with a rank of its own gives this rank's batches, in another order each epoch."""
    ranks = [loader(of_rank(rank)) for rank in range(2)]
    assert [(held.rank, held.world_size) for held in ranks] == [(0, 2), (1, 2)]
    epochs = [[sorted(int(row[0]) for held in ranks for batch in read(held) for row in batch)] for _ in range(2)]
    assert epochs == [[list(range(N))]] * 2

    first, second = loader(of_rank(1)), loader(of_rank(1))
    whole = train(loader(of_rank(1)))
    before = train(first, 6)
    second.load_state_dict(first.state_dict())
    assert before + train(second) == whole


@pytest.mark.parametrize(
    "names", [("rank", "num_replicas"), ("rank", "world_size"), ("process_index", "num_processes")]
)
def test_names_of_a_rank(names: tuple[str, str]) -> None:
    """A sampler's own rank is known by the names that torch, mmengine and accelerate give it, and not shared again."""
    sampler = Buckets()
    for name, value in zip(names, (1, 3), strict=True):
        setattr(sampler, name, value)
    held = loader(sampler)

    assert (held.rank, held.world_size) == (1, 3)
    assert read(held) == read(loader(Buckets()))


def test_sampler_that_missed_its_world(tmp_path: Path) -> None:
    """A sampler made for one process, in a group of processes that knows better, is refused: ranks would read the same."""
    sampler = of_rank(0, 2)
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/join", rank=0, world_size=1)
    try:
        with pytest.raises(TopologyError, match=r"is of \(rank, num_replicas\) \(0, 2\), and this is rank 0 of 1"):
            loader(sampler)
    finally:
        torch.distributed.destroy_process_group()


def test_sampler_of_one_rank_in_another_world() -> None:
    """Batches of one rank cannot go on in another world size, and both are named."""
    state = loader(of_rank(0)).state_dict()
    with pytest.raises(LoaderStateError, match=r"made for 2 ranks when it was saved and is made for 3 ranks now"):
        loader(of_rank(0, 3)).load_state_dict(state)
    with pytest.raises(TopologyError, match=r"is of \(rank, num_replicas\) \(0, 2\), and this is rank 1 of 4"):
        loader(of_rank(0), rank=1, world_size=4)
    with pytest.raises(TopologyError, match=r"gives no batches of rank 0 of 1"):
        audit(loader(of_rank(0)), Topology(1, 0), Topology(2, 0))


def test_audit() -> None:
    """The audit compares a batch sampler's batches under two topologies, and leaves the loader's own sampler alone."""
    held = loader(Stateful())
    found = audit(held, Topology(1, 0), Topology(2, 1), batches=9)

    assert found.difference is None
    assert train(held) == train(loader(Stateful()))


def test_from_torch() -> None:
    """A DataLoader with a batch sampler is taken over with it."""
    plain = DataLoader(Drawing(N), batch_sampler=Buckets(), num_workers=1)
    with pytest.warns(UserWarning, match="batches are those of Buckets.*change once"):
        held = Loader.from_torch(plain, seed=3)

    assert read(held) == read(loader(Buckets()))
    assert held.worker_options["num_workers"] == 1


def run_leg(folder: Path, stop: int | None = None) -> tuple[list[Any], torch.Tensor]:
    """Train in a `Run` of that folder, until a crash after step `stop` or to the end; return steps and weights."""
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    seen = []
    every = bitproof.Every(steps=3)
    with (
        contextlib.suppress(KeyError),
        bitproof.Run(folder, seed=0, save_every=every, model=model, optimizer=optimizer) as run,
    ):
        held = loader(Stateful(), num_workers=1)
        for epoch in run.epochs(2):
            for batch in run.batches(held):
                seen.append((run.step, epoch, rows(batch)))
                model(batch.float()).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                if run.step == stop:
                    raise KeyError(stop)
    return seen, model.weight.detach().clone()


@pytest.mark.parametrize("stop", [5, 8])
def test_in_a_run(tmp_path: Path, stop: int) -> None:
    """A `Run` carries the loader with its sampler's state, over a crash in the first epoch and in the second."""
    whole, weights = run_leg(tmp_path / "whole")
    before, _ = run_leg(tmp_path / "run", stop)
    after, resumed = run_leg(tmp_path / "run")
    redone = after[0][0]

    assert 0 < redone < stop
    assert [step for step in before if step[0] < redone] + after == whole
    assert torch.equal(weights, resumed)


@pytest.mark.parametrize("given", [5, Buckets, object()])
def test_what_cannot_be_iterated_is_refused_at_once(given: Any) -> None:
    """A batch size, or a class in place of an instance of it."""
    with pytest.raises(BatchError, match="cannot be iterated: expected what yields lists of indices"):
        Loader(Drawing(N), batch_sampler=given)
