"""The loader's interface: state, passes, and every error with both values and the remedy."""

import gc
import json
import multiprocessing
import os
import pickle
import random
import time
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from data_samples import Drawing, Pid, read, rows
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from bitproof.data import Loader, OrderChangedWarning
from bitproof.data.errors import (
    BatchError,
    DataChangedError,
    DataLengthError,
    LoaderStateError,
    NotCarriedError,
    OrderVersionError,
    PositionError,
    StaleIteratorError,
    TopologyError,
    UnpicklableError,
)

GOLDEN_STATE = {
    "format": 1,
    "order_version": 2,
    "seed": 3,
    "shuffle": True,
    "position": 4,
    "epoch": 0,
    "length": 10,
    "fingerprint": "known",
}

GOLDEN_BATCH = [7, 4, 5, 2]
GOLDEN_REST = [[0, 8, 6, 1], [9, 3]]


def loader(n: int = 10, batch_size: int = 4, **options: Any) -> Loader:
    """A shuffled loader over the numbers below n."""
    return Loader(list(range(n)), batch_size, **{"shuffle": True, "seed": 3, "fingerprint": "known", **options})


def test_golden_state() -> None:
    """The stored state has these fields and values; a change of either is a change of format."""
    held = loader()
    assert next(iter(held)).tolist() == GOLDEN_BATCH
    assert held.state_dict() == GOLDEN_STATE


def test_state_is_small() -> None:
    """A state is below 300 bytes, for huge data sets and long fingerprints too."""

    class Huge:
        def __len__(self) -> int:
            return 10**12

        def __getitem__(self, index: int) -> int:
            return index

        def fingerprint(self) -> str:
            return "0" * 1000

    held = Loader(Huge(), 1024, shuffle=True, seed=2**64)
    held.set_epoch(10**6)

    assert len(json.dumps(held.state_dict())) < 300
    assert len(pickle.dumps(held.state_dict())) < 300


def test_load_does_not_depend_on_the_position() -> None:
    """Going to a far position takes no longer than to a near one."""

    class Huge(Drawing):
        pass

    held = Loader(Huge(10**12), 256, shuffle=True, fingerprint="known")
    state = {**held.state_dict(), "position": 10**11}
    next(iter(held))
    start = time.perf_counter()
    held.load_state_dict(state)
    next(iter(held))

    assert held.position == 10**11 + 256
    assert time.perf_counter() - start < 1


def test_last_samples_name_what_was_taken() -> None:
    """After each batch, last_samples holds its (epoch, index) pairs, of this rank."""
    held = loader(batch_size=5, rank=0, world_size=1)
    for batch in held:
        assert [index for _, index in held.last_samples] == batch.tolist()
        assert {epoch for epoch, _ in held.last_samples} == {0}
    next(iter(held))

    assert {epoch for epoch, _ in held.last_samples} == {1}


def test_underneath_is_a_plain_dataloader() -> None:
    """The DataLoader underneath is torch's own class, and its batch sampler yields (epoch, index) pairs."""
    held = loader()
    next(iter(held))

    assert type(held.dataloader) is DataLoader
    assert isinstance(held.dataloader.batch_sampler, torch.utils.data.Sampler)
    assert next(iter(held.dataloader.batch_sampler)) == list(held.last_samples)


def test_surrounding_generators_are_put_back() -> None:
    """Reading in this process leaves python's, NumPy's and torch's generators as they were, cached draws too."""
    random.seed(1), np.random.seed(1), torch.manual_seed(1)  # noqa: NPY002
    random.gauss(0, 1), np.random.standard_normal()  # noqa: NPY002 - each keeps a second draw
    before = random.getstate(), repr(np.random.get_state()), torch.get_rng_state()  # noqa: NPY002
    read(Loader(Drawing(9), 4, shuffle=True))
    after = random.getstate(), repr(np.random.get_state()), torch.get_rng_state()  # noqa: NPY002

    assert before[:2] == after[:2]
    assert torch.equal(before[2], after[2])


@pytest.mark.parametrize("workers", [0, 2])
def test_iterating_draws_nothing(workers: int) -> None:
    """Starting a pass does not draw from torch's global generator, as a plain DataLoader does."""
    torch.manual_seed(1)
    before = torch.get_rng_state()
    rows_of(loader(num_workers=workers, sample_randomness=False))

    assert torch.equal(before, torch.get_rng_state())


def test_iter_before_load() -> None:
    """An iterator that was made before a state is loaded starts at the state."""
    held = loader()
    iterator = iter(held)
    held.load_state_dict(GOLDEN_STATE)

    assert rows_of(iterator) == GOLDEN_REST


def rows_of(iterator: Any) -> list[list[int]]:
    """The rest of an iterator over number batches."""
    return [batch.tolist() for batch in iterator]


@pytest.mark.parametrize("move", ["load", "epoch", "iterate"])
def test_started_iterator_before_load(move: str) -> None:
    """An iterator that has yielded, whose loader is then moved, is refused."""
    held = loader()
    iterator = iter(held)
    next(iterator)
    if move == "load":
        held.load_state_dict(GOLDEN_STATE)
    elif move == "epoch":
        held.set_epoch(4)
    else:
        next(iter(held))

    with pytest.raises(StaleIteratorError, match=r"before its loader was moved to position \d+.*iter\(loader\)"):
        next(iterator)


def test_set_epoch() -> None:
    """set_epoch goes to the start of another epoch, and does not disturb the one in progress."""
    held = loader()
    next(iter(held))
    held.set_epoch(0)
    assert held.position == 4
    held.set_epoch(2)
    assert (held.position, held.epoch) == (20, 2)
    with pytest.raises(PositionError, match=r"must be 0 or more, found -1"):
        held.set_epoch(-1)


def test_len_and_remaining() -> None:
    """len() is a whole epoch's batches, remaining what is left of the pass."""
    held = loader()
    next(iter(held))

    assert (len(held), held.remaining) == (3, 2)
    assert len(loader(drop_last=True)) == 2


def test_seed_and_shuffle_come_from_the_state() -> None:
    """A script that draws another seed goes on with the run's order, with persistent workers too."""
    held = loader(seed=99, shuffle=False, num_workers=1, persistent_workers=True)
    next(iter(held))
    held.load_state_dict(GOLDEN_STATE)

    assert held.seed == 3
    assert rows_of(held) == GOLDEN_REST


def test_batch_size_may_change() -> None:
    """A resume with other batches goes on at the same sample."""
    held = loader(batch_size=2)
    held.load_state_dict(GOLDEN_STATE)

    assert [i for batch in rows_of(held) for i in batch] == [i for batch in GOLDEN_REST for i in batch]


def test_one_sample() -> None:
    """A data set of one sample works."""
    assert rows_of(loader(1, 1)) == [[0]]


def test_persistent_workers_are_kept() -> None:
    """Persistent workers live on from pass to pass, and end with the loader."""
    held = Loader(Pid(), 3, num_workers=2, persistent_workers=True, fingerprint="known")
    first, second = ({pid for _, pids in held for pid in pids.tolist()} for _ in range(2))

    assert first == second
    assert os.getpid() not in first
    del held
    gc.collect()
    assert not multiprocessing.active_children()


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true:UserWarning")
def test_options_reach_the_dataloader() -> None:
    """Options of workers are torch's own."""
    held = loader(num_workers=1, pin_memory=True, prefetch_factor=3, timeout=30, multiprocessing_context="fork")

    assert (held.dataloader.num_workers, held.dataloader.prefetch_factor, held.dataloader.timeout) == (1, 3, 30)
    assert rows_of(held) == rows_of(loader())


def test_collate_fn() -> None:
    """The user's collate function gets the list of samples."""
    assert list(loader(4, 2, shuffle=False, collate_fn=tuple)) == [(0, 1), (2, 3)]


@pytest.mark.parametrize("workers", [0, 1])
def test_unkeyed_samples_are_read_at_once(workers: int) -> None:
    """Without sample randomness, a data set's __getitems__ is used."""

    class Many(Drawing):
        def __getitems__(self, indices: list[int]) -> list[int]:
            return [-i for i in indices]

    held = Loader(Many(4), 4, sample_randomness=False, num_workers=workers, fingerprint="known")

    assert rows_of(held) == [[0, -1, -2, -3]]
    assert "sample_randomness=False" in held.limits[0]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"n": 0, "batch_size": 1}, DataLengthError, "0 samples, expected 1 or more"),
        ({"batch_size": 11}, BatchError, "batch_size 11 is larger than the data set's 10 .*batch_size=10"),
        ({"batch_size": 0}, BatchError, "must be 1 or more, found 0"),
        ({"rank": 2, "world_size": 2}, TopologyError, "rank 2 of world_size 2: expected 0 <= rank < world_size"),
        ({"rank": -1, "world_size": 2}, TopologyError, "rank -1 of world_size 2"),
        ({"rank": 0, "world_size": 0}, TopologyError, "world_size 0"),
        ({"rank": 0}, TopologyError, "both rank and world_size, or neither: found rank=0, world_size=None"),
        ({"rank": 0, "world_size": 3}, BatchError, "batch_size 4 is not divisible by world_size 3.*Use 3 or 6"),
        ({"drop_last": True, "cross_epochs": True}, BatchError, "exclude each other"),
    ],
)
def test_bad_settings(options: dict[str, Any], error: type[Exception], message: str) -> None:
    """Settings that cannot be are refused when the loader is made."""
    with pytest.raises(error, match=message):
        loader(**options)


def test_ragged_last_batch() -> None:
    """A last batch that leaves ranks without a sample is refused before the epoch starts, not at its end."""
    held = loader(9, 4, rank=0, world_size=2)
    with pytest.raises(BatchError, match=r"last batch of the epoch has 1 sample for 2 ranks .*cross_epochs=True"):
        next(iter(held))


def test_launcher_without_process_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launched rank that has not joined its group is told so, instead of reading everything."""
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(TopologyError, match=r"WORLD_SIZE=4.*init_process_group"):
        loader()


def test_rank_of_torch_distributed(tmp_path: Any) -> None:
    """Rank and world size are torch.distributed's, where it is initialised."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/join", rank=0, world_size=1)
    try:
        assert (loader().plan.rank, loader().plan.world_size) == (0, 1)
    finally:
        torch.distributed.destroy_process_group()


def test_iterable_dataset() -> None:
    """A stream is refused, with what to use instead."""

    class Stream(IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter(range(3))

    with pytest.raises(NotCarriedError, match=r"Stream is no map-style data set.*carry"):
        Loader(Stream(), 1)


def test_length_changes_while_training() -> None:
    """A data set that grows under the loader is noticed at the next pass."""
    data = list(range(10))
    held = Loader(data, 4)
    read_all = rows_of(held)
    data.append(10)

    assert len(read_all) == 3
    with pytest.raises(DataChangedError, match=r"had 10 samples when the loader was made and has 11 now"):
        next(iter(held))


def test_length_changed_before_resume() -> None:
    """A data set of another length is refused with both values and the override, which keeps the offset."""
    held = loader(12)
    with pytest.raises(DataChangedError, match=r"length was 10 when .* is 12 now.*accept_changed_data=True"):
        held.load_state_dict(GOLDEN_STATE)
    held.load_state_dict({**GOLDEN_STATE, "position": 14, "epoch": 1}, accept_changed_data=True)

    assert (held.position, held.epoch) == (16, 1)


def test_content_changed_before_resume() -> None:
    """Data of the same length and other content is refused, with both fingerprints."""
    old = Loader(TensorDataset(torch.arange(10)), 4)
    new = Loader(TensorDataset(torch.arange(10) + 1), 4)
    with pytest.raises(
        DataChangedError, match=r"fingerprint was '1:8:\w+' when the state was saved and is '1:8:\w+' now"
    ):
        new.load_state_dict(old.state_dict())
    new.load_state_dict(old.state_dict(), accept_changed_data=True)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"order_version": 1}, OrderVersionError, "order_version is 1, this bitproof has 2.*version of bitproof"),
        ({"format": 7}, OrderVersionError, "format is 7, this bitproof has 1"),
        ({"position": -4}, LoaderStateError, "'position' must be int of 0 or more, found -4"),
        ({"position": 25}, LoaderStateError, "position must be from 0 to 19 in epoch 0 of 10 samples, found 25"),
        ({"position": "4"}, LoaderStateError, "'position' must be int of 0 or more, found '4'"),
        ({"epoch": True}, LoaderStateError, "'epoch' must be int of 0 or more, found True"),
        ({"length": 0}, LoaderStateError, "'length' must be int of 1 or more, found 0"),
        ({"shuffle": 1}, LoaderStateError, "'shuffle' must be bool, found 1"),
        ({"speed": 1}, LoaderStateError, r"unknown fields \['speed'\]"),
    ],
)
def test_bad_state(change: dict[str, Any], error: type[Exception], message: str) -> None:
    """A state that is damaged, or of another version, is refused by its field."""
    with pytest.raises(error, match=message):
        loader().load_state_dict({**GOLDEN_STATE, **change})


@pytest.mark.parametrize("state", [{}, {"epoch": 3}, None, [1]])
def test_no_loader_state(state: Any) -> None:
    """Something else than a loader state is named as such."""
    with pytest.raises(LoaderStateError, match=r"not a state of"):
        loader().load_state_dict(state)


@pytest.mark.parametrize("name", ["dataset", "collate_fn"])
def test_unpicklable(name: str) -> None:
    """What cannot be sent to spawned workers is named, with the remedy."""

    class Local(Drawing):
        pass

    dataset, collate = (Local(4), None) if name == "dataset" else (Drawing(4), lambda samples: samples)
    held = Loader(dataset, 2, num_workers=1, multiprocessing_context="spawn", collate_fn=collate, fingerprint="known")
    with pytest.raises(UnpicklableError, match=f"^{name} of type .* 'spawn'.*top of a module"):
        next(iter(held))


def test_from_torch_sequential() -> None:
    """A sequential DataLoader becomes a loader of the same batches, without a warning."""
    plain = DataLoader(TensorDataset(torch.arange(10)), batch_size=4, drop_last=True, num_workers=1)
    held = Loader.from_torch(plain)

    assert [batch[0].tolist() for batch in held] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert held.worker_options["num_workers"] == 1


def test_from_torch_shuffled() -> None:
    """A shuffled DataLoader changes its order once, and says so."""
    plain = DataLoader(TensorDataset(torch.arange(10)), batch_sampler=BatchSampler(RandomSampler(range(10)), 4, False))
    with pytest.warns(OrderChangedWarning, match=r"another order than"):
        held = Loader.from_torch(plain, seed=3)

    assert sorted(i for batch in held for i in batch[0].tolist()) == list(range(10))


def test_from_torch_distributed() -> None:
    """A distributed sampler gives rank, world size and the global batch."""
    data = TensorDataset(torch.arange(16))
    plain = DataLoader(data, batch_size=2, sampler=DistributedSampler(data, num_replicas=4, rank=1, shuffle=False))
    held = Loader.from_torch(plain)

    assert (held.plan.rank, held.plan.world_size, held.batch_size) == (1, 4, 8)
    assert [batch[0].tolist() for batch in held] == [batch[0].tolist() for batch in plain]


@pytest.mark.parametrize(
    "options",
    [
        {"sampler": WeightedRandomSampler([1.0] * 10, 10), "batch_size": 4},
        {"sampler": SubsetRandomSampler(range(3)), "batch_size": 2},
        {"sampler": RandomSampler(range(10), replacement=True)},
        {"sampler": RandomSampler(range(10), num_samples=4)},
        {"batch_sampler": [[0, 1], [2]]},
    ],
)
def test_from_torch_keeps_other_samplers(options: dict[str, Any]) -> None:
    """A sampler of another kind is kept as the batch sampler, and what it draws is exact after a resume."""

    def make() -> Loader:
        with pytest.warns(OrderChangedWarning, match=r"batches are those of \w+, .* set for each epoch from seed 5"):
            return Loader.from_torch(DataLoader(TensorDataset(torch.arange(10)), **options), seed=5)

    first, second, whole = make(), make(), make()
    before = [next(iter(first))[0].tolist()]
    second.load_state_dict(first.state_dict())

    assert before + [batch[0].tolist() for batch in second] == [batch[0].tolist() for batch in whole]


def test_from_torch_refuses() -> None:
    """A DataLoader that does not read batches is refused, with what to use instead."""
    with pytest.raises(NotCarriedError, match=r"has batch_size=None, .*Use batch_size="):
        Loader.from_torch(DataLoader(TensorDataset(torch.arange(10)), batch_size=None))


def test_prefetched_batches_are_dropped_on_load() -> None:
    """Loading a state while workers have read ahead goes to the state, not to what they read."""
    held = Loader(Drawing(20), 2, shuffle=True, num_workers=2, persistent_workers=True)
    state = held.state_dict()
    first = [rows(batch) for batch in islice(held, 5)]
    held.load_state_dict(state)

    assert [rows(batch) for batch in islice(held, 5)] == first
