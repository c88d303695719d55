"""What is seen of a step's batch: modules' inputs, loaders, labels, samples and indices."""

import multiprocessing
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # as everybody writes it
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from bitproof.fingerprint import digest_rows
from bitproof.trail.reader import Leg
from bitproof.trail.records import StepHead, unpack_digests


def data(count: int = 12) -> TensorDataset:
    """Inputs and labels, no two alike."""
    return TensorDataset(torch.arange(2.0 * count).reshape(count, 2), torch.arange(count) % 3)


def train(loader: Any, *, epochs: int = 1, net: nn.Module | None = None, stop: int | None = None) -> None:
    """Fit a linear model."""
    net = net or nn.Linear(2, 3)
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    for _ in range(epochs):
        for i, (x, y) in enumerate(loader):
            if i == stop:
                break
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimizer.step()


def indices(leg: Leg) -> list[list[int] | None]:
    """The samples' indices of each step."""
    return [head.micros[0].indices for head in leg.steps]


def check_samples(leg: Leg, of: TensorDataset) -> None:
    """The digests of each step's samples are those of the data at the step's indices."""
    rows = digest_rows(of.tensors[0])
    for head in leg.steps:
        micro = head.micros[0]
        assert micro.indices is not None
        assert list(unpack_digests(micro.samples)) == [rows[i] for i in micro.indices]


def parts(leg: Leg, step: int) -> tuple[str, ...]:
    """The names in a step's batch."""
    detail = leg.detail(step)
    assert detail is not None
    return detail.batches[0].names


@pytest.mark.parametrize("workers", [0, 2])
def test_labels_that_pass_no_module_are_part_of_the_batch(recorded: Any, workers: int) -> None:
    """A loader's labels belong to the batch though only its inputs enter the model, and indices and samples agree."""
    dataset = data()
    context = "fork" if workers else None
    loader = DataLoader(dataset, 4, shuffle=True, num_workers=workers, multiprocessing_context=context)
    leg = recorded.run(lambda: train(loader, epochs=2))
    assert parts(leg, 1) == ("input", "loader.1")
    assert [sorted(i for part in indices(leg)[e : e + 3] for i in part or []) for e in (0, 3)] == [list(range(12))] * 2
    check_samples(leg, dataset)


def test_other_labels_are_another_batch(recorded: Any) -> None:
    """Two runs that differ in one label differ in the batch."""
    one, other = data(), data()
    other.tensors[1][5] = 2 - other.tensors[1][5]
    net = nn.Linear(2, 3)
    nets = [nn.Linear(2, 3), nn.Linear(2, 3)]
    for each in nets:
        each.load_state_dict(net.state_dict())
    legs = [
        recorded.run(lambda d=d, n=n: train(DataLoader(d, 4), net=n)) for d, n in zip((one, other), nets, strict=True)
    ]
    roots = [[head.roots["batch"] for head in leg.steps] for leg in legs]
    assert [a == b for a, b in zip(*roots, strict=True)] == [True, False, True]
    assert [
        a == b for a, b in zip(*[[m.samples for h in leg.steps for m in h.micros] for leg in legs], strict=True)
    ] == [True] * 3


def test_persistent_workers_show_right_indices_after_an_epoch_that_was_left(recorded: Any) -> None:
    """Indices that workers drew ahead in an epoch that was broken off do not shift those of the next."""
    dataset = data(24)
    loader = DataLoader(
        dataset, 2, shuffle=True, num_workers=2, persistent_workers=True, multiprocessing_context="fork"
    )
    leg = recorded.run(lambda: train(loader, epochs=2, stop=4))
    assert len(leg.steps) == 8
    check_samples(leg, dataset)
    started = [event.data for event in leg.events if event.kind == "loader-started"]
    assert len(started) == 2
    assert started[0] == started[1]
    assert started[0]["persistent_workers"]


class Slow(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """The first samples take longer."""

    def __init__(self, of: TensorDataset) -> None:
        self.of = of

    def __len__(self) -> int:
        return len(self.of)

    def __getitem__(self, index: int) -> Any:
        if index < 2:
            time.sleep(0.3)
        return self.of[index]


def test_batches_out_of_order_have_right_indices_or_none(recorded: Any) -> None:
    """A loader that yields what is ready first is not given the indices of another batch."""
    dataset = data(12)
    loader = DataLoader(Slow(dataset), 2, num_workers=2, in_order=False, multiprocessing_context="fork")
    leg = recorded.run(lambda: train(loader))
    rows = digest_rows(dataset.tensors[0])
    assert len(leg.steps) == 6
    for head in leg.steps:
        found = head.micros[0].indices
        assert found is None or list(unpack_digests(head.micros[0].samples)) == [rows[i] for i in found]


@pytest.mark.slow
def test_spawned_workers(recorded: Any) -> None:
    """Workers that are started afresh show the same."""
    dataset = data()
    loader = DataLoader(dataset, 4, shuffle=True, num_workers=1, multiprocessing_context="spawn")
    leg = recorded.run(lambda: train(loader))
    check_samples(leg, dataset)


class Stream(IterableDataset[tuple[torch.Tensor, torch.Tensor]]):
    """Samples without indices."""

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        yield from ((torch.full((2,), float(i)), torch.tensor(i % 3)) for i in range(12))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_has_samples_and_no_indices(recorded: Any, workers: int) -> None:
    """An iterable data set's samples are told apart though they have no indices."""
    loader = DataLoader(Stream(), 4, num_workers=workers, multiprocessing_context="fork" if workers else None)
    leg = recorded.run(lambda: train(loader))
    assert indices(leg) == [None] * 3
    assert len({s for head in leg.steps for s in unpack_digests(head.micros[0].samples)}) == 12


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.parametrize("workers", [0, 1])
def test_the_stateful_loader(recorded: Any, workers: int) -> None:
    """The loader of torchdata is watched like torch's, each batch once, also after its state was restored."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    dataset = data()

    def make() -> Any:
        context = "fork" if workers else None
        return StatefulDataLoader(dataset, 3, num_workers=workers, multiprocessing_context=context)

    def run() -> None:
        loader = make()
        train(loader, stop=2)
        again = make()
        again.load_state_dict(loader.state_dict())
        train(again)

    leg = recorded.run(run)
    check_samples(leg, dataset)
    assert [found for head in leg.steps for found in head.micros[0].indices or []][:6] == list(range(6))
    assert sum(event.kind == "loader-started" for event in leg.events) == 2


def test_a_loader_that_runs_one_ahead(recorded: Any) -> None:
    """The loader of accelerate fetches the next batch before it yields one; indices belong to what the model was given."""
    from accelerate.data_loader import prepare_data_loader

    dataset = data()
    loader = prepare_data_loader(DataLoader(dataset, 3, shuffle=True), put_on_device=False)
    leg = recorded.run(lambda: train(loader))
    assert len(leg.steps) == 4
    check_samples(leg, dataset)
    assert parts(leg, 2) == ("input", "loader.1")


def test_batches_fetched_ahead_for_a_whole_window(recorded: Any) -> None:
    """A trainer that fetches eight batches before it accumulates over them has each one's indices."""
    dataset = data(32)
    net = nn.Linear(2, 3)

    def run() -> None:
        optimizer = torch.optim.SGD(net.parameters(), 0.01)
        fetched = iter(DataLoader(dataset, 2))
        for _ in range(2):
            for x, y in [next(fetched) for _ in range(8)]:
                F.cross_entropy(net(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()

    leg = recorded.run(run)
    found = [micro.indices for head in leg.steps for micro in head.micros]
    assert found == [[2 * i, 2 * i + 1] for i in range(16)]


def test_memory_that_is_used_again_is_not_taken_for_an_old_batch(recorded: Any) -> None:
    """A tensor that lies where a freed batch lay is not given that batch's labels and indices."""
    net = nn.Linear(2, 3)

    def run() -> None:
        optimizer = torch.optim.SGD(net.parameters(), 0.01)
        loader = iter(DataLoader(data(), 4))
        for _ in range(3):
            batch = next(loader)
            address = batch[0].data_ptr()
            del batch
            made = [torch.full((4, 2), 5.0) for _ in range(50)]
            x = next((tensor for tensor in made if tensor.data_ptr() == address), made[0])
            F.cross_entropy(net(x), torch.zeros(4, dtype=torch.int64)).backward()
            optimizer.step()

    leg = recorded.run(run)
    assert all(parts(leg, step) == ("input",) for step in (1, 2, 3))


@dataclass
class Both:
    """A batch as a data class."""

    x: torch.Tensor
    y: torch.Tensor


class Pair(NamedTuple):
    """A batch as a named tuple."""

    x: torch.Tensor
    y: torch.Tensor


class Taking(nn.Module):
    """Takes its batch as one object."""

    def __init__(self, take: Callable[[Any], tuple[torch.Tensor, torch.Tensor]]) -> None:
        super().__init__()
        self.take = take
        self.inner = nn.Linear(2, 3)

    def forward(self, batch: Any, *, scale: torch.Tensor | None = None) -> torch.Tensor:
        """Return the loss."""
        x, y = self.take(batch)
        return F.cross_entropy(self.inner(x), y) * (1 if scale is None else scale)


@pytest.mark.parametrize(
    ("make", "take", "expected"),
    [
        (lambda x, y: {"x": x, "y": y}, lambda b: (b["x"], b["y"]), ("batch.x", "batch.y", "scale")),
        (lambda x, y: {"deep": [{"x": x}], "y": y}, lambda b: (b["deep"][0]["x"], b["y"]), ("batch.deep.0.x", "batch.y", "scale")),
        (lambda x, y: (x, y), lambda b: b, ("batch.0", "batch.1", "scale")),
        (Pair, lambda b: b, ("batch.0", "batch.1", "scale")),
        (Both, lambda b: (b.x, b.y), ("batch.x", "batch.y", "scale")),
    ],
    ids=["dict", "nested", "tuple", "named tuple", "data class"],
)  # fmt: skip
def test_batches_of_every_form(recorded: Any, make: Any, take: Any, expected: tuple[str, ...]) -> None:
    """Tensors in mappings, sequences and data classes are found, and named by where they are; keywords too."""
    net = Taking(take)

    def run() -> None:
        optimizer = torch.optim.SGD(net.parameters(), 0.01)
        for _ in range(2):
            net(make(torch.randn(4, 2), torch.randint(3, (4,))), scale=torch.ones(())).backward()
            optimizer.step()

    leg = recorded.run(run)
    assert parts(leg, 1) == expected
    assert leg.steps[0].roots["batch"] != leg.steps[1].roots["batch"]


def test_a_batch_that_holds_itself(recorded: Any) -> None:
    """A structure with a cycle in it is read to its end."""
    net = Taking(lambda b: (b["x"], b["y"]))

    def run() -> None:
        optimizer = torch.optim.SGD(net.parameters(), 0.01)
        batch: dict[str, Any] = {"x": torch.randn(4, 2), "y": torch.randint(3, (4,))}
        batch["itself"] = [batch]
        net(batch).backward()
        torch.save(batch, recorded.path.parent / "a.pt")
        optimizer.step()

    leg = recorded.run(run)
    assert parts(leg, 1) == ("batch.x", "batch.y")
    saved = next(event.saved for event in leg.events if event.kind == "file-saved")
    assert saved is not None
    assert leg.tensors(saved).names == ("x", "y")


def test_outputs_of_an_earlier_module_are_no_input(recorded: Any) -> None:
    """What one module call of the step made and another is given does not come from outside, though it was detached."""
    first, second = nn.Linear(2, 2), nn.Linear(2, 3)

    def run() -> None:
        optimizer = torch.optim.SGD(second.parameters(), 0.01)
        x = torch.randn(4, 2)
        second(first(x).detach()).sum().backward()
        optimizer.step()

    leg = recorded.run(run)
    detail = leg.detail(1)
    assert detail is not None
    assert len(detail.batches[0].names) == 1


def test_no_process_is_left(recorded: Any) -> None:
    """Worker processes end with their loaders as without the recorder."""
    loaders = [DataLoader(data(), 4, num_workers=2, multiprocessing_context="fork")]
    recorded.run(lambda: train(loaders.pop()))
    assert multiprocessing.active_children() == []


def test_tensors_without_bytes_of_their_own(recorded: Any) -> None:
    """A wrapper around tensors is seen through its parts; one that holds none is said to be not observed."""
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor, Shard, init_device_mesh

    class Passing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(2, 1)

        def forward(self, x: torch.Tensor, extra: Any) -> torch.Tensor:
            del extra
            return self.inner(x)

    net = Passing()

    def run() -> None:
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        try:
            mesh = init_device_mesh("cpu", (1,))
            for i in range(3):
                sharded = DTensor.from_local(torch.full((4, 2), float(i // 2)), mesh, [Shard(0)])
                net(torch.ones(1, 2), {"sharded": sharded, "meta": torch.empty(3, device="meta")}).sum().backward()
                optimizer.step()
        finally:
            dist.destroy_process_group()

    leg = recorded.run(run)
    batches = []
    for step in (1, 2, 3):
        detail = leg.detail(step)
        assert detail is not None
        batches.append(detail.batches[0].by_name())
    assert batches[0]["extra.sharded"] == batches[1]["extra.sharded"] != batches[2]["extra.sharded"]
    assert batches[0]["extra.meta"][0] == "unseen"
    said = [event.data["what"] for event in leg.events if event.kind == "not-observed"]
    assert said == ["the content of a Tensor (torch.strided, on meta)"]


def _two_epochs(lab: Any, **settings: Any) -> list[StepHead]:
    """Record two epochs over eight samples of our own loader."""
    from bitproof.data import Loader

    def train(_job: Any) -> None:
        torch.manual_seed(0)
        loader = Loader(list(torch.randn(8, 3)), **settings)
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            for batch in loader:
                model(batch).sum().backward()
                optimizer.step()

    steps: list[StepHead] = lab.record(train).legs[0].steps
    return steps


def test_our_loader_names_epoch_and_index(lab: Any) -> None:
    """A step of our own loader holds the (epoch, index) pair of each of its samples, prefetched or not."""
    steps = _two_epochs(lab, batch_size=4, shuffle=True, seed=1)
    pairs = [pair for step in steps for pair in step.micros[0].indices or []]
    assert sorted(pairs) == [(epoch, index) for epoch in range(2) for index in range(8)]


def test_our_loader_names_samples_drawn_again(lab: Any) -> None:
    """A batch sampler's samples are named by (epoch, index) too, also one that it draws twice in an epoch."""
    batches = [[5, 2, 5], [5, 0, 1]]
    steps = _two_epochs(lab, batch_sampler=batches, num_workers=1)
    assert [step.micros[0].indices for step in steps] == [
        [(epoch, index) for index in batch] for epoch in range(2) for batch in batches
    ]
