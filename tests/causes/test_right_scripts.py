"""Right scripts of different make: whatever they are, a kill at any moment must come out identical."""

import os
import random
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.checkpoint
from torch import Tensor, nn, optim
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from kit.live import Job, Lab
from kit.loop import SIZE, Loop, State, network

Kill = int | float | tuple[int | float, ...]


class Plain(Loop):
    """No scheduler."""

    def make_scheduler(self) -> None:
        """Keep the rate."""


class Momentum(Plain):
    """SGD with momentum, Nesterov's, over two groups."""

    def make_optimizer(self) -> optim.Optimizer:
        first, *rest = self.model.children()
        groups = [{"params": first.parameters(), "lr": 0.01}, {"params": [p for m in rest for p in m.parameters()]}]
        return optim.SGD(groups, lr=0.05, momentum=0.9, nesterov=True)


class Adam(Plain):
    """Adam with amsgrad."""

    def make_optimizer(self) -> optim.Optimizer:
        return optim.Adam(self.model.parameters(), lr=0.02, amsgrad=True)


class Fused(Loop):
    """Fused AdamW."""

    def make_optimizer(self) -> optim.Optimizer:
        return optim.AdamW(self.model.parameters(), lr=0.02, fused=True)


class Foreach(Loop):
    """AdamW over lists of tensors."""

    def make_optimizer(self) -> optim.Optimizer:
        return optim.AdamW(self.model.parameters(), lr=0.02, foreach=True)


class RMSprop(Plain):
    """Centred RMSprop."""

    def make_optimizer(self) -> optim.Optimizer:
        return optim.RMSprop(self.model.parameters(), lr=0.002, centered=True, momentum=0.5)


class Adagrad(Plain):
    """Adagrad, whose state exists before the first step."""

    def make_optimizer(self) -> optim.Optimizer:
        return optim.Adagrad(self.model.parameters(), lr=0.05)


class LBFGS(Plain):
    """LBFGS, which calls forward and backward itself."""

    def make_optimizer(self) -> optim.Optimizer:
        return optim.LBFGS(self.model.parameters(), lr=0.5, max_iter=3)

    def make_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))

    def backward(self, x: Tensor, y: Tensor) -> None:
        self.latest = x, y

    def update(self) -> None:
        def closure() -> Tensor:
            self.optimizer.zero_grad()
            loss = self.loss(*self.latest)
            loss.backward()
            return loss

        self.optimizer.step(closure)


class Adversarial(Plain):
    """Two models, each with an optimizer, in turn."""

    def build(self) -> None:
        self.model = nn.ModuleDict(
            {"make": nn.Linear(4, 6), "judge": nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))}
        )
        self.make_step = optim.Adam(self.model["make"].parameters(), lr=0.01)
        self.optimizer = optim.Adam(self.model["judge"].parameters(), lr=0.01)
        self.scheduler = None

    def backward(self, x: Tensor, y: Tensor) -> None:
        del y
        fake = self.model["make"](torch.randn(len(x), 4))
        judged = self.model["judge"](x).mean() - self.model["judge"](fake.detach()).mean()
        judged.backward()
        self.optimizer.step()
        self.model.zero_grad()
        self.model["judge"](fake).mean().backward()
        self.make_step.step()
        self.model.zero_grad()

    def update(self) -> None:
        pass

    def state(self) -> State:
        return super().state() | {"make_step": self.make_step.state_dict()}

    def restore(self, state: State) -> None:
        super().restore(state)
        self.make_step.load_state_dict(state["make_step"])


class InBackward(Plain):
    """One optimizer a parameter, stepped inside the backward pass."""

    def build(self) -> None:
        self.model = self.make_model()
        self.scheduler = None
        self.each = {p: optim.SGD([p], lr=0.05, momentum=0.9) for p in self.model.parameters()}
        self.optimizer = optim.SGD(self.model.parameters(), lr=0.05)
        for p in self.model.parameters():
            p.register_post_accumulate_grad_hook(self.step_one)

    def step_one(self, p: Tensor) -> None:
        self.each[p].step()
        self.each[p].zero_grad()

    def update(self) -> None:
        pass

    def state(self) -> State:
        return super().state() | {"each": [one.state_dict() for one in self.each.values()]}

    def restore(self, state: State) -> None:
        super().restore(state)
        for one, saved in zip(self.each.values(), state["each"], strict=True):
            one.load_state_dict(saved)


class ScheduleFree(Plain):
    """An optimizer that holds two sets of weights and has a mode, saved in eval mode as its documents say."""

    def make_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.2), nn.Linear(8, 3))

    def make_optimizer(self) -> optim.Optimizer:
        schedulefree = pytest.importorskip("schedulefree")
        optimizer = schedulefree.AdamWScheduleFree(self.model.parameters(), lr=0.02, warmup_steps=3)
        optimizer.train()
        return optimizer


class OneCycle(Loop):
    """A cycle that moves the momentum too."""

    def make_scheduler(self) -> Any:
        return lr_scheduler.OneCycleLR(self.optimizer, max_lr=0.1, total_steps=20)


class WarmRestarts(Loop):
    """A cosine that restarts."""

    def make_scheduler(self) -> Any:
        return lr_scheduler.CosineAnnealingWarmRestarts(self.optimizer, T_0=3, T_mult=2)


class WarmUpFromNought(Loop):
    """A warm-up from rate 0, then a decay, with plain SGD, so that the first step changes no weight."""

    save_every = 1

    def make_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))

    def make_optimizer(self) -> optim.Optimizer:
        return optim.SGD(self.model.parameters(), lr=0.1)

    def make_scheduler(self) -> Any:
        up = lr_scheduler.LambdaLR(self.optimizer, lambda n: n / 4)
        down = lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        return lr_scheduler.SequentialLR(self.optimizer, [up, down], milestones=[4])


class Plateau(Loop):
    """A rate that follows the validation loss."""

    save_every = 3

    def make_scheduler(self) -> Any:
        return lr_scheduler.ReduceLROnPlateau(self.optimizer, patience=1, factor=0.5, threshold=0.5)

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.model.eval()
        with torch.no_grad():
            metric = float(self.loss(self.x, self.y))
        self.model.train()
        self.scheduler.step(metric)


class Stateful(Plain):
    """torchdata's stateful loader with workers, whose state is in the checkpoint."""

    workers = 0

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        stateful = pytest.importorskip("torchdata.stateful_dataloader")
        data = TensorDataset(self.x, self.y)
        self.loader = stateful.StatefulDataLoader(data, self.batch_size, shuffle=True, num_workers=self.workers)
        if self.position is not None:
            self.loader.load_state_dict(self.position)
        restore, self.rng = getattr(self, "rng", None), None
        iterator = iter(self.loader)
        if restore is not None:
            torch.set_rng_state(restore)
        while True:
            yield from iterator
            iterator = iter(self.loader)

    position: Any = None

    def state(self) -> State:
        return super().state() | {"loader": self.loader.state_dict()}

    def restore(self, state: State) -> None:
        super().restore(state)
        self.position, self.rng = state["loader"], state["rng"]["torch"]


class StatefulWorkers(Stateful):
    """The same with a worker."""

    workers = 1
    total = 8


class RestoredGenerator(Plain):
    """A shuffled loader whose generator is put back to the epoch's start, and batches that are skipped."""

    def build(self) -> None:
        super().build()
        self.generator = torch.Generator().manual_seed(5)
        self.epoch_state = self.generator.get_state()

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        skip = self.passes % 5
        data = TensorDataset(self.x, self.y)
        while True:
            if self.passes % 5 == 0:
                self.epoch_state = self.generator.get_state()
            sampler = RandomSampler(data, generator=self.generator)
            loader = DataLoader(data, self.batch_size, sampler=sampler, generator=torch.Generator())
            for i, batch in enumerate(loader):
                if i >= skip:
                    yield batch
            skip = 0

    def state(self) -> State:
        return super().state() | {"epoch_state": self.epoch_state}

    def restore(self, state: State) -> None:
        super().restore(state)
        self.epoch_state = state["epoch_state"]
        self.generator.set_state(self.epoch_state)


class ShortLastBatch(Plain):
    """Epochs whose last batch is short."""

    batch_size = 12


class Workers(Plain):
    """Two worker processes, in order."""

    total = 8

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            epoch, position = divmod(self.passes, 5)
            order = torch.randperm(SIZE, generator=torch.Generator().manual_seed(epoch)).tolist()
            data = TensorDataset(self.x, self.y)
            yield from DataLoader(data, 8, sampler=order[8 * position :], num_workers=2, generator=torch.Generator())


class Scaled(Loop):
    """A scaler that overflows and skips steps, also the last before a kill, and unscales to clip."""

    save_every = 1

    def build(self) -> None:
        super().build()
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**120, growth_interval=2, growth_factor=2.0**10)

    def backward(self, x: Tensor, y: Tensor) -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = self.loss(x, y)
        self.scaler.scale(loss).backward()

    def update(self) -> None:
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        self.scheduler.step()

    def state(self) -> State:
        return super().state() | {"scaler": self.scaler.state_dict()}

    def restore(self, state: State) -> None:
        super().restore(state)
        self.scaler.load_state_dict(state["scaler"])


class ScaledFused(Scaled):
    """The same with a fused optimizer, which skips inside."""

    def make_optimizer(self) -> optim.Optimizer:
        return optim.AdamW(self.model.parameters(), lr=0.02, fused=True)

    def update(self) -> None:
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        self.scheduler.step()


class Compiled(Loop):
    """A compiled model, loaded through the wrapper."""

    total = 8

    def make_model(self) -> nn.Module:
        return torch.compile(network(), backend="eager")


class Accumulated(Loop):
    """Three passes a step, saved inside windows, gradients and all."""

    accumulate = 3
    total = 7


class AccumulatedPlain(Accumulated):
    """The same without anything in the model that tells passes apart."""

    def make_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


class Averaged(Loop):
    """Two averages, one of them by hand."""

    def build(self) -> None:
        super().build()
        self.average = optim.swa_utils.AveragedModel(self.model)
        self.shadow = {name: p.detach().clone() for name, p in self.model.named_parameters()}

    def update(self) -> None:
        super().update()
        self.average.update_parameters(self.model)
        with torch.no_grad():
            for name, p in self.model.named_parameters():
                self.shadow[name].lerp_(p, 0.1)

    def state(self) -> State:
        return super().state() | {"average": self.average.state_dict(), "shadow": self.shadow}

    def restore(self, state: State) -> None:
        super().restore(state)
        self.average.load_state_dict(state["average"])
        self.shadow = state["shadow"]


class Tied(Loop):
    """Input and output share a weight; the first layer is frozen."""

    def make_model(self) -> nn.Module:
        model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6, bias=False), nn.Tanh(), nn.Linear(6, 6, bias=False))
        model[3].weight = model[1].weight
        model[0].requires_grad_(requires_grad=False)
        return model

    def make_optimizer(self) -> optim.Optimizer:
        return optim.AdamW([p for p in self.model.parameters() if p.requires_grad], lr=0.02)


class Recurrent(Plain):
    """A recurrent network with dropout over sequences."""

    def make_model(self) -> nn.Module:
        return nn.ModuleDict(
            {"rnn": nn.GRU(2, 5, num_layers=2, dropout=0.3, batch_first=True), "head": nn.Linear(5, 3)}
        )

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        hidden, _ = self.model["rnn"](x.view(-1, 3, 2))
        return nn.functional.cross_entropy(self.model["head"](hidden[:, -1]), y)


class Validating(Loop):
    """Validates every third step, without gradients."""

    save_every = 3

    def update(self) -> None:
        super().update()
        if self.passes % 3 == 0:
            self.model.eval()
            self.validate()
            self.model.train()

    def validate(self) -> None:
        with torch.no_grad():
            for x, y in DataLoader(TensorDataset(self.x, self.y), 20):
                self.loss(x, y)


class ValidatingWithGradients(Validating):
    """Validates and forgets no_grad."""

    def validate(self) -> None:
        for x, y in DataLoader(TensorDataset(self.x, self.y), 20):
            self.loss(x, y)


class Recomputing(Loop):
    """Activation checkpointing around a block with dropout, gradients clipped."""

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        hidden = torch.utils.checkpoint.checkpoint(self.model[:4], x, use_reentrant=False)
        return nn.functional.cross_entropy(self.model[4](hidden), y)

    def update(self) -> None:
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        super().update()


class TorchOnly(Loop):
    """Seeds and restores only torch's generator."""

    def seed(self) -> None:
        torch.manual_seed(0)

    def state(self) -> State:
        return super().state() | {"rng": torch.get_rng_state()}

    def restore(self, state: State) -> None:
        own = state.pop("rng")
        super().restore(state)
        torch.set_rng_state(own)


class Diary(Loop):
    """Writes clocks, places, generators and restarts into its checkpoints."""

    restarts = 0

    def state(self) -> State:
        noise = {
            "time": time.time(),
            "elapsed": time.perf_counter(),
            "train_time": torch.tensor(time.time()),
            "saved_at": time.time_ns(),
            "samples_per_second": random.SystemRandom().random(),
            "pid": os.getpid(),
            "out_dir": str(self.job.out),
            "restarts": self.restarts,
            "unused": random.Random().getstate(),
            "unused_generator": np.random.default_rng().bit_generator.state,
        }
        return super().state() | noise

    def restore(self, state: State) -> None:
        super().restore(state)
        self.restarts = state["restarts"] + 1


class SelfResuming(Loop):
    """Looks for its newest checkpoint whether it is told to or not."""

    def __init__(self, job: Job) -> None:
        super().__init__(Job(job.out, resume=True))


class SquaredError(Plain):
    """A regression with a loss module, a schedule in the loss and two backward passes of one graph."""

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return nn.MSELoss(reduction="sum")(self.model(x).mean(1), y.float()) * (1 + self.passes / 10)

    def backward(self, x: Tensor, y: Tensor) -> None:
        loss = self.loss(x, y)
        loss.backward(retain_graph=True)
        (0.1 * loss).backward()


class OffsetByOne(Loop):
    """Saves before the first step and after each."""

    save_every = 1

    def run(self) -> None:
        if not self.job.resume:
            self.save()
        super().run()


FAMILY: list[tuple[type[Loop], tuple[Kill, ...]]] = [
    (Loop, (1, 4, 9, (5, 9))),
    (Momentum, (7,)),
    (Adam, (7,)),
    (Fused, (7,)),
    (Foreach, (7,)),
    (RMSprop, (7,)),
    (Adagrad, (7,)),
    (LBFGS, (5, 7)),
    (Adversarial, (9, 14)),
    (InBackward, (7,)),
    (ScheduleFree, (7,)),
    (OneCycle, (6,)),
    (WarmRestarts, (7,)),
    (WarmUpFromNought, (1, 2, 3, 6)),
    (Plateau, (4, 8)),
    (Stateful, (7, 11)),
    (StatefulWorkers, (6,)),
    (RestoredGenerator, (6, 9)),
    (ShortLastBatch, (4, 7)),
    (Workers, (7,)),
    (Scaled, (1, 2, 3, 7)),
    (ScaledFused, (2, 7)),
    (Compiled, (7,)),
    (Accumulated, (2, 3.1, 3.2, (2, 4.1))),
    (AccumulatedPlain, (2, 3.1, 3.2)),
    (Averaged, (7,)),
    (Tied, (7,)),
    (Recurrent, (7,)),
    (Validating, (7,)),
    (ValidatingWithGradients, (7,)),
    (Recomputing, (7,)),
    (TorchOnly, (7,)),
    (Diary, (7, (6, 10))),
    (SelfResuming, (7, (5, 10))),
    (SquaredError, (3, 7.1)),
    (OffsetByOne, (1, 5)),
]


@pytest.mark.parametrize(("loop", "kills"), FAMILY, ids=[loop.__name__ for loop, _ in FAMILY])
def test_no_false_alarm(lab: Lab, loop: type[Loop], kills: tuple[Kill, ...]) -> None:
    """A script that resumes rightly is identical, at the right seam, wherever it is killed."""
    reference = lab.record(loop.train)
    for kill in kills:
        several = kill if isinstance(kill, tuple) else (kill,)
        verdict = lab.trial(loop.train, reference, *several)
        assert verdict.verdict == "identical", (kill, verdict)
        assert verdict.steps.compared == verdict.steps.identical > 0
        for seam in verdict.seams:
            assert seam.resumed_at is not None
            saved = loop.save_every / loop.accumulate
            assert 0 <= seam.killed_after.step - seam.resumed_at.step <= 2 * saved


@pytest.mark.parametrize(
    "loop", [Diary, TorchOnly, Validating, Scaled, InBackward, LBFGS], ids=lambda loop: loop.__name__
)
def test_two_recordings_are_identical(lab: Lab, loop: type[Loop]) -> None:
    """Two recordings of one right script are identical, clocks in its checkpoints or not."""
    verdict = lab.diff(loop.train, loop.train)
    assert verdict.verdict == "identical", verdict


def test_a_fault_beside_clocks_is_still_found(lab: Lab) -> None:
    """The control does not take clocks in a checkpoint for a run that does not repeat."""

    class Forgets(Diary):
        def restore(self, state: State) -> None:
            super().restore(state | {"optimizer": self.optimizer.state_dict()})

    verdict = lab.prove(Forgets.train, 7)
    assert verdict.verdict == "diverged"
    assert [c.code for c in verdict.causes] == ["optimizer-not-restored"]
