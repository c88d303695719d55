"""Law 1: a recorded run ends with the same bits as an unrecorded one, and leaves nothing behind."""

import copy
import gc
import random
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812  # as everybody writes it
import torch.utils.checkpoint
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import bitproof
from bitproof.trail.reader import read_trail


def network(*, dropout: float = 0.1) -> nn.Sequential:
    """A net with a parameter, a buffer and a draw in it."""
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, 3))


def batches(count: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Random batches, drawn as they are asked for."""
    for _ in range(count):
        yield torch.randn(6, 8), torch.randint(3, (6,))


class Noisy(Dataset[tuple[torch.Tensor, int]]):
    """Draws from all three generators for each sample."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        noise = random.random() + np.random.rand()  # noqa: NPY002
        return torch.randn(8) + noise + index, index % 3


def plain() -> nn.Module:
    """SGD with momentum."""
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    for x, y in batches(4):
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
    return net


def scheduled_and_clipped() -> nn.Module:
    """AdamW, a schedule, and clipped gradients."""
    net = network()
    optimizer = torch.optim.AdamW(net.parameters(), 0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
    for x, y in batches(4):
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        schedule.step()
    return net


def accumulating() -> nn.Module:
    """Three micro-steps an update."""
    net = network()
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    for i, (x, y) in enumerate(batches(9)):
        (F.cross_entropy(net(x), y) / 3).backward()
        if i % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()
    return net


def autocast() -> nn.Module:
    """Forward in bfloat16."""
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for x, y in batches(4):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
    return net


def scaled() -> nn.Module:
    """A gradient scaler with one overflow."""
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=2)
    for i, (x, y) in enumerate(batches(4)):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y) * (float("inf") if i == 1 else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return net


def lbfgs() -> nn.Module:
    """Closures that are called several times a step."""
    net = network(dropout=0.0)
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=3)
    for x, y in batches(2):

        def closure(x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)
    return net


def checkpointed() -> nn.Module:
    """Activations computed again in the backward pass, with a dropout in them."""
    net = network(dropout=0.5)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for x, y in batches(3):
        optimizer.zero_grad()
        hidden = torch.utils.checkpoint.checkpoint(net, x, use_reentrant=False)
        F.cross_entropy(hidden, y).backward()
        optimizer.step()
    return net


def checkpointed_reentrant() -> nn.Module:
    """The older way to compute activations again: a backward pass inside the backward pass."""
    net = network(dropout=0.5)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for x, y in batches(3):
        optimizer.zero_grad()
        hidden = torch.utils.checkpoint.checkpoint(net, x.requires_grad_(), use_reentrant=True)
        F.cross_entropy(hidden, y).backward()
        optimizer.step()
    return net


def loader_here() -> nn.Module:
    """A shuffled loader whose samples draw from every generator."""
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(2):
        for x, y in DataLoader(Noisy(), batch_size=8, shuffle=True):
            optimizer.zero_grad()
            F.cross_entropy(net(x.float()), y).backward()
            optimizer.step()
    return net


def loader_workers() -> nn.Module:
    """The same in forked workers."""
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for x, y in DataLoader(Noisy(), batch_size=8, shuffle=True, num_workers=2, multiprocessing_context="fork"):
        optimizer.zero_grad()
        F.cross_entropy(net(x.float()), y).backward()
        optimizer.step()
    return net


def adversarial() -> nn.Module:
    """A generator and a discriminator."""
    maker, judge = nn.Linear(4, 8), nn.Linear(8, 1)
    first = torch.optim.Adam(maker.parameters(), 0.01)
    second = torch.optim.Adam(judge.parameters(), 0.01)
    for x, _ in batches(3):
        second.zero_grad()
        (judge(maker(torch.randn(6, 4)).detach()).mean() - judge(x).mean()).backward()
        second.step()
        first.zero_grad()
        (-judge(maker(torch.randn(6, 4))).mean()).backward()
        first.step()
    return nn.ModuleList([maker, judge])


def inside_backward() -> nn.Module:
    """One optimizer a parameter, stepped while gradients are computed."""
    net = network()
    optimizers = {p: torch.optim.SGD([p], 0.1, momentum=0.5) for p in net.parameters()}

    def step(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in net.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    for x, y in batches(3):
        F.cross_entropy(net(x), y).backward()
    return net


def averaged() -> nn.Module:
    """An average of the weights and a target net, both written in place."""
    net = network()
    average = torch.optim.swa_utils.AveragedModel(net)
    target = copy.deepcopy(net)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for x, y in batches(3):
        optimizer.zero_grad()
        with torch.no_grad():
            aim = target(x)
        (F.cross_entropy(net(x), y) + F.mse_loss(net(x), aim)).backward()
        optimizer.step()
        average.update_parameters(net)
        for old, new in zip(target.parameters(), net.parameters(), strict=True):
            old.data.mul_(0.9).add_(new.data, alpha=0.1)
    return nn.ModuleList([net, average, target])


def sparse() -> nn.Module:
    """An embedding with sparse gradients."""
    net = nn.EmbeddingBag(20, 4, sparse=True, mode="sum")
    optimizer = torch.optim.SparseAdam(net.parameters(), 0.01)
    for _ in range(3):
        optimizer.zero_grad()
        net(torch.randint(20, (5, 3))).pow(2).sum().backward()
        optimizer.step()
    return net


def recurrent() -> nn.Module:
    """A cell called once a time step, from outside."""
    cell, head = nn.GRUCell(8, 8), nn.Linear(8, 3)
    net = nn.ModuleList([cell, head])
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for x, y in batches(3):
        optimizer.zero_grad()
        state = torch.zeros(6, 8)
        for _ in range(5):
            state = cell(x, state)
        F.cross_entropy(head(state), y).backward()
        optimizer.step()
    return net


def functional() -> nn.Module:
    """Gradients from ``torch.func``, with a batched one a sample."""
    net = network(dropout=0.0).eval()
    parameters = dict(net.named_parameters())
    buffers = dict(net.named_buffers())
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def loss(weights: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.func.functional_call(net, (weights, buffers), (x.unsqueeze(0),))
        return F.cross_entropy(out, y.unsqueeze(0))

    for x, y in batches(3):
        frozen = {name: p.detach() for name, p in parameters.items()}
        gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(frozen, x, y)
        for name, parameter in parameters.items():
            parameter.grad = gradients[name].mean(0)
        optimizer.step()
    return net


def autograd_grad() -> nn.Module:
    """Gradients from ``torch.autograd.grad``, set by hand."""
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for x, y in batches(3):
        found = torch.autograd.grad(F.cross_entropy(net(x), y), list(net.parameters()))
        for parameter, gradient in zip(net.parameters(), found, strict=True):
            parameter.grad = gradient
        optimizer.step()
    return net


def double_precision() -> nn.Module:
    """Complex weights and float64, channels last."""
    net = (
        nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(36, 3)).double().to(memory_format=torch.channels_last)
    )
    spin = nn.Parameter(torch.randn(3, dtype=torch.complex128))
    optimizer = torch.optim.Adam([*net.parameters(), spin], 0.01)
    for _ in range(3):
        optimizer.zero_grad()
        x = torch.randn(4, 2, 5, 5, dtype=torch.float64).to(memory_format=torch.channels_last)
        (net(x) * spin).abs().sum().backward()
        optimizer.step()
    return nn.ParameterList([*net.parameters(), spin])


def distributed() -> nn.Module:
    """The wrapper for data-parallel training, alone in its group."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        net = network()
        wrapped = nn.parallel.DistributedDataParallel(net)
        optimizer = torch.optim.SGD(wrapped.parameters(), 0.1)
        for i, (x, y) in enumerate(batches(4)):
            if i % 2 == 0:
                with wrapped.no_sync():
                    F.cross_entropy(wrapped(x), y).backward()
                continue
            F.cross_entropy(wrapped(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        return net
    finally:
        dist.destroy_process_group()


MAKES: dict[Callable[[], nn.Module], int] = {
    plain: 4,
    scheduled_and_clipped: 4,
    accumulating: 3,
    autocast: 4,
    scaled: 4,
    lbfgs: 2,
    checkpointed: 3,
    checkpointed_reentrant: 3,
    loader_here: 6,
    loader_workers: 3,
    adversarial: 6,
    inside_backward: 3,
    averaged: 3,
    sparse: 3,
    recurrent: 3,
    functional: 3,
    autograd_grad: 3,
    double_precision: 3,
    distributed: 2,
}
"""Makes of script, and how many steps each takes."""


def outcome(make: Callable[[], nn.Module]) -> dict[str, bytes]:
    """Seed, train, and return every bit that could have changed."""
    random.seed(3)
    np.random.seed(3)  # noqa: NPY002
    torch.manual_seed(3)
    net = make()
    tensors = {**dict(net.named_parameters()), **dict(net.named_buffers())}
    bits = {
        name: tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        for name, tensor in tensors.items()
    }
    bits["python"] = repr(random.getstate()).encode()
    bits["numpy"] = repr([np.asarray(part).tolist() for part in np.random.get_state()]).encode()  # noqa: NPY002
    bits["torch"] = torch.get_rng_state().numpy().tobytes()
    return bits


@pytest.mark.parametrize("make", MAKES, ids=lambda make: make.__name__)
def test_recorded_equals_unrecorded(make: Callable[[], nn.Module], tmp_path: Path) -> None:
    """Weights, buffers and generators end with the same bits with the recorder as without it, and each step is seen."""
    alone = outcome(make)
    with bitproof.recording(tmp_path / "a.trail"):
        watched = outcome(make)
    assert watched == alone
    leg = read_trail(tmp_path / "a.trail").legs[0]
    assert len(leg.steps) == MAKES[make]
    assert all(head.roots.keys() >= {"weights", "hyperparameters", "gradients"} for head in leg.steps)


@pytest.mark.parametrize(
    "make", [plain, accumulating, loader_here, recurrent, adversarial], ids=lambda make: make.__name__
)
def test_two_recordings_of_one_script_are_equal(make: Callable[[], nn.Module], tmp_path: Path) -> None:
    """What is written of a step depends on nothing but the step."""
    heads = []
    for name in ("a", "b"):
        with bitproof.recording(tmp_path / name):
            outcome(make)
        leg = read_trail(tmp_path / name).legs[0]
        heads.append([(head.roots, head.micros, head.rng_start, head.rng_forward, head.rate) for head in leg.steps])
    assert heads[0] == heads[1]


def test_nothing_is_kept_alive(tmp_path: Path) -> None:
    """Batches, outputs, graphs, models and optimizers are freed as without the recorder, by reference counts alone."""
    gone: list[weakref.ref[Any]] = []
    with bitproof.recording(tmp_path / "a.trail"):
        gc.collect()
        gc.disable()
        try:
            net = network()
            optimizer = torch.optim.Adam(net.parameters(), 0.01)
            loader = DataLoader(TensorDataset(torch.randn(12, 8), torch.randint(3, (12,))), batch_size=6)
            for x, y in loader:
                out = net(x)
                loss = F.cross_entropy(out, y)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                gone = [weakref.ref(thing) for thing in (x, y, out, out.untyped_storage(), loss)]
            del x, y, out, loss
            assert [ref() for ref in gone] == [None] * len(gone)
            state = weakref.ref(optimizer.state[net[0].weight]["exp_avg"])
            gone = [
                weakref.ref(thing) for thing in (optimizer, net, net[0], net[0].weight, net[1].running_mean, loader)
            ]
            del net, optimizer, loader
            # Adam's state and its parameters know each other through no cycle, so all of it goes at once.
            assert [ref() for ref in [*gone, state]] == [None] * 7
        finally:
            gc.enable()


def test_nothing_stays_patched(tmp_path: Path) -> None:
    """After the block every function and hook list of PyTorch is what it was before."""
    import torch.nn.modules.module as hooks
    import torch.optim.optimizer as optimizers
    import torch.utils.data.dataloader as loading
    from safetensors import torch as tensors

    owners = [
        torch, torch.autograd, torch.random, torch.serialization, torch.utils.checkpoint, nn.Module, np.random, random,
        torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler, torch.amp.GradScaler, DataLoader, tensors,
        loading._BaseDataLoaderIter, hooks, optimizers,
    ]  # fmt: skip
    # The first optimizer and the first loader of a process import and set more.
    outcome(loader_here)
    lists = [
        optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks,
        hooks._global_module_registration_hooks, hooks._global_parameter_registration_hooks,
        hooks._global_buffer_registration_hooks,
    ]  # fmt: skip
    before = [dict(vars(owner)) for owner in owners]
    lengths = [len(hook) for hook in lists]
    with bitproof.recording(tmp_path / "a.trail"):
        outcome(loader_here)
        changed = [
            name
            for owner, old in zip(owners, before, strict=True)
            for name in old
            if vars(owner).get(name) is not old[name]
        ]
    assert {"backward", "__call__", "save", "load", "manual_seed", "seed"} <= set(changed)
    for owner, old in zip(owners, before, strict=True):
        assert {name: vars(owner).get(name) for name in old} == old, owner
    assert [len(hook) for hook in lists] == lengths


def test_the_recorder_is_freed(tmp_path: Path) -> None:
    """When the block has ended nothing holds the recorder: not a hook, not the fork handler."""
    with bitproof.recording(tmp_path / "a.trail") as recorder:
        outcome(plain)
    gone = weakref.ref(recorder)
    del recorder
    gc.collect()
    assert gone() is None


def test_a_wrapper_that_outlives_the_block_only_passes_on(tmp_path: Path) -> None:
    """A function of PyTorch that somebody kept or wrapped during the block works afterwards, and records nothing."""
    with bitproof.recording(tmp_path / "a.trail") as recorder:
        kept_save, kept_backward, kept_call = torch.save, torch.autograd.backward, nn.Module.__call__
        outcome(plain)
    events = len(recorder.early_events)
    kept_save({"a": 1}, tmp_path / "f.pt")
    kept_backward(kept_call(nn.Linear(2, 1), torch.ones(1, 2)).sum())
    assert len(recorder.early_events) == events
    assert [path.name for path in (tmp_path / "a.trail").iterdir()] == ["leg-001.rank-000.leg"]
    assert len(read_trail(tmp_path / "a.trail").legs[0].steps) == 4


def test_memory_does_not_grow_with_calls_between_steps(tmp_path: Path) -> None:
    """What is remembered of calls and batches that no step follows is bounded, as in an evaluation that forgot no_grad."""
    data = TensorDataset(torch.randn(3_000, 2))
    net = nn.Linear(2, 1)
    with bitproof.recording(tmp_path / "a.trail") as recorder:
        for (x,) in DataLoader(data, batch_size=1):
            net(x)
        window = recorder._window
        assert len(window.yielded) <= 300
        assert len(window.produced) <= 300


def test_a_long_recurrence_costs_a_call_the_same(tmp_path: Path) -> None:
    """Looking up what an earlier call produced does not slow down with the number of calls in a step."""
    import time

    cell = nn.Linear(2, 2)

    def seconds(calls: int) -> float:
        optimizer = torch.optim.SGD(cell.parameters(), 0.0)
        begin = time.process_time()
        state = torch.zeros(1, 2)
        for _ in range(calls):
            state = cell(state + torch.ones(1, 2))
        for _ in range(calls):
            cell(torch.ones(1, 2))
        state.sum().backward()
        optimizer.step()
        return (time.process_time() - begin) / calls

    with bitproof.recording(tmp_path / "a.trail"):
        seconds(10)
        few = min(seconds(100) for _ in range(3))
        many = seconds(3_000)
    assert many < 5 * few
