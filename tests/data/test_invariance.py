"""The same samples with the same augmentation, under any workers, world size, batch size and resume."""

import json
from itertools import islice
from typing import Any

import pytest
from data_samples import Drawing, masked, read, rows
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bitproof.data import Loader
from bitproof.data.errors import BatchError

N, EPOCHS = 29, 6
ALL_WORKERS = "ignore:This DataLoader will create:UserWarning"  # more workers than this machine has cores
Sample = tuple[float, ...]


def reference() -> list[Sample]:
    """The samples at positions 0 … N · EPOCHS − 1, read one by one in this process."""
    loader = Loader(Drawing(N), 1, shuffle=True, seed=5)
    return [batch[0] for _ in range(EPOCHS) for batch in read(loader)]


REFERENCE = reference()


def ranks(world_size: int, batch_size: int, **options: Any) -> list[Loader]:
    """One loader a rank."""
    return [
        Loader(Drawing(N), batch_size, shuffle=True, seed=5, rank=rank, world_size=world_size, **options)
        for rank in range(world_size)
    ]


def test_reference_is_what_it_should_be() -> None:
    """Each sample occurs once an epoch, and is drawn differently in each epoch."""
    assert len(set(REFERENCE)) == N * EPOCHS
    for epoch in range(EPOCHS):
        assert sorted(row[0] for row in REFERENCE[epoch * N : (epoch + 1) * N]) == list(range(N))
    assert len({draw for row in REFERENCE for draw in row[1:]}) == N * EPOCHS * 5


@pytest.mark.filterwarnings(ALL_WORKERS)
@pytest.mark.parametrize("workers", [0, 1, 2, 3])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_topologies(world_size: int, workers: int) -> None:
    """An epoch's batches are the same under every world size and worker count."""
    passes = [read(loader) for loader in ranks(world_size, 12, num_workers=workers, cross_epochs=True)]

    assert {len(batches) for batches in passes} == {3}
    for number, shares in enumerate(zip(*passes, strict=True)):
        together: list[Any] = [None] * 12
        for rank, share in enumerate(shares):
            together[rank::world_size] = share
        assert together == REFERENCE[number * 12 : (number + 1) * 12]


class Resumes(RuleBasedStateMachine):
    """A run that is stopped and resumed anywhere, each time with other ranks, workers and batches."""

    def __init__(self) -> None:
        super().__init__()
        self.loaders: list[Loader] = []
        self.iterators: list[Any] = []
        self.position = self.epoch = 0
        self.mode: dict[str, bool] = {}

    @initialize(mode=st.sampled_from(["short", "drop_last", "cross_epochs"]))
    def start(self, mode: str) -> None:
        """Begin with one process."""
        self.mode = {} if mode == "short" else {mode: True}
        self.use(ranks(1, 4, **self.mode))

    def use(self, loaders: list[Loader]) -> None:
        """Go on with these loaders."""
        self.loaders, self.iterators = loaders, [iter(loader) for loader in loaders]

    def expected_stop(self) -> int | None:
        """The position after the next batch, None at the end of a pass."""
        size, end = self.loaders[0].batch_size, (self.epoch + 1) * N
        if self.position >= end or (self.position + size > end and self.mode.get("drop_last")):
            return None
        return self.position + size if self.mode.get("cross_epochs") else min(end, self.position + size)

    @precondition(lambda self: self.loaders and self.epoch < EPOCHS - 2)
    @rule(count=st.integers(1, 9))
    def take(self, count: int) -> None:
        """Take some batches, or reach the end of the pass."""
        world_size = len(self.loaders)
        for _ in range(count):
            stop = self.expected_stop()
            shares = [list(islice(iterator, 1)) for iterator in self.iterators]
            if stop is None:
                assert not any(shares)
                self.epoch += 1
                self.position = max(self.position, self.epoch * N)
                self.iterators = [iter(loader) for loader in self.loaders]
                return
            together: list[Any] = [None] * (stop - self.position)
            for rank, (batch,) in enumerate(shares):
                together[rank::world_size] = rows(batch)
                assert [index for _, index in self.loaders[rank].last_samples] == [row[0] for row in rows(batch)]
            assert together == REFERENCE[self.position : stop]
            self.position = stop

    @precondition(lambda self: self.loaders)
    @rule(
        world_size=st.sampled_from([1, 2, 3, 4]),
        workers=st.sampled_from([0, 0, 1, 2, 3]),
        share=st.integers(1, 4),
        persistent=st.booleans(),
        iter_first=st.booleans(),
    )
    def resume(self, world_size: int, workers: int, share: int, *, persistent: bool, iter_first: bool) -> None:
        """Save, and go on elsewhere."""
        state = json.loads(json.dumps(self.loaders[0].state_dict()))
        options: dict[str, Any] = {
            "num_workers": workers,
            "persistent_workers": persistent and workers > 0,
            **self.mode,
        }
        loaders = ranks(world_size, world_size * share, **options)
        iterators = [iter(loader) for loader in loaders] if iter_first else None
        for loader in loaders:
            loader.load_state_dict(state)
        left = [] if self.mode else [(self.epoch + 1) * N - self.position, N]
        ragged = [0 < samples % (world_size * share) < world_size for samples in left]
        if any(ragged):  # ranks without a sample in a last batch: refused, so go on with one process
            if ragged[0]:
                with pytest.raises(BatchError, match=r"for .* ranks"):
                    next(iter(loaders[-1]))
            loaders, iterators = ranks(1, share, **self.mode), None
            loaders[0].load_state_dict(state)
        self.use(loaders)
        self.iterators = iterators or self.iterators

    @precondition(lambda self: self.loaders)
    @rule()
    def reload(self) -> None:
        """Load the present state into the loaders that hold it already."""
        state = self.loaders[0].state_dict()
        for loader in self.loaders:
            loader.load_state_dict(state)
        self.iterators = [iter(loader) for loader in self.loaders]

    @invariant()
    def same_state_everywhere(self) -> None:
        """All ranks have the same state, which is the model's position."""
        for loader in self.loaders:
            state = loader.state_dict()
            assert (state["position"], state["epoch"]) == (self.position, self.epoch)
            assert state == self.loaders[0].state_dict()

    def teardown(self) -> None:
        """End workers."""
        self.loaders, self.iterators = [], []


TestResumes = pytest.mark.filterwarnings(ALL_WORKERS)(Resumes.TestCase)
TestResumes.settings = settings(
    max_examples=20,
    stateful_step_count=12,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking restarts workers for minutes
)


@pytest.mark.parametrize("mode", [{}, {"drop_last": True}, {"cross_epochs": True}])
@pytest.mark.parametrize("stop", range(1, 16))
def test_stop_at_every_batch(stop: int, mode: dict[str, bool]) -> None:
    """A loop over epochs, stopped after any batch, takes exactly the steps that are left, in the same epochs."""

    def train(loader: Loader, stop: int | None = None) -> list[tuple[int, list[Sample]]]:
        steps: list[tuple[int, list[Sample]]] = []
        for epoch in range(loader.epoch, 3):
            loader.set_epoch(epoch)
            for batch in loader:
                steps.append((epoch, rows(batch)))
                if len(steps) == stop:
                    return steps
        return steps

    uninterrupted = train(ranks(1, 5, **mode)[0])
    first, second = ranks(1, 5, **mode)[0], ranks(1, 5, **mode)[0]
    before = train(first, stop)
    second.load_state_dict(first.state_dict())

    assert before + train(second) == uninterrupted


def test_saved_right_after_an_epoch() -> None:
    """A state taken after the loop of an epoch has ended starts the next epoch, whole."""
    first, second = ranks(1, 5)[0], ranks(1, 5)[0]
    read(first)
    second.load_state_dict(first.state_dict())

    assert second.epoch == 1
    assert [row for batch in read(second) for row in batch] == REFERENCE[N : 2 * N]


def test_three_legs() -> None:
    """Two resumes in one epoch are as good as none."""
    state, found = None, []
    for _ in range(3):
        loader = ranks(1, 4)[0]
        if state:
            loader.load_state_dict(state)
        found += read(loader, 2)
        state = loader.state_dict()

    assert [row for batch in found for row in batch] == REFERENCE[:24]


@pytest.mark.parametrize("persistent", [False, True])
def test_passes_with_workers_stay_whole(*, persistent: bool) -> None:
    """After a resume in the middle of an epoch, later epochs have their full length, with the same workers too."""
    loader = ranks(1, 8, num_workers=2, persistent_workers=persistent)[0]
    loader.load_state_dict({**loader.state_dict(), "position": 16})
    lengths = [len(read(loader)) for _ in range(3)]

    assert lengths == [2, 4, 4]


def test_breaking_off_with_persistent_workers() -> None:
    """A loop that is left early is taken up at the next batch, not at what was prefetched."""
    loader = ranks(1, 4, num_workers=2, persistent_workers=True)[0]
    found = read(loader, 2) + read(loader, 3) + read(loader)

    assert [row for batch in found for row in batch] == REFERENCE[:N]


def test_position_is_what_was_taken() -> None:
    """The position counts consumed samples, whatever workers have prefetched."""
    loader = ranks(1, 2, num_workers=2)[0]
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)

    assert loader.state_dict()["position"] == 6


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_start_methods(method: str) -> None:
    """Workers that are not forked read the same."""
    loader = ranks(1, 15, num_workers=1, multiprocessing_context=method, fingerprint="known")[0]

    assert [row for batch in read(loader) for row in batch] == REFERENCE[:N]


@pytest.mark.parametrize("workers", [0, 2])
def test_random_collate(workers: int) -> None:
    """A collate function that draws gives the same batch in any process."""
    expected = read(ranks(1, 8, collate_fn=masked)[0])

    assert read(ranks(1, 8, collate_fn=masked, num_workers=workers)[0]) == expected
    assert len({row[-1] for batch in expected for row in batch}) == N


def test_total_steps_do_not_depend_on_topology() -> None:
    """Every rank takes the same number of batches, under any world size."""
    counts = {len(read(loader)) for world_size in (1, 2, 3, 4) for loader in ranks(world_size, 12, cross_epochs=True)}

    assert counts == {3}


def test_gradient_accumulation() -> None:
    """The position counts the batches that were taken, four an optimizer step here, not the optimizer's steps."""
    loader = ranks(1, 1)[0]
    for step, _ in enumerate(loader, start=1):
        if step == 4 * 5:
            break
    resumed = ranks(1, 1)[0]
    resumed.load_state_dict(loader.state_dict())

    assert loader.position == 20
    assert read(resumed, 1) == [[REFERENCE[20]]]


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_know_the_epoch(*, persistent: bool) -> None:
    """Workers that live on from epoch to epoch draw anew in each, in the order of that epoch."""
    loader = ranks(1, 10, num_workers=1, persistent_workers=persistent)[0]

    assert [row for _ in range(3) for batch in read(loader) for row in batch] == REFERENCE[: 3 * N]
