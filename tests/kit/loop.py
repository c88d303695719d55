"""A training loop that resumes rightly, in parts: each test replaces one of them."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from kit.live import Job

State = dict[str, Any]
SIZE = 40
FEATURES = 6
CLASSES = 3


def table() -> tuple[Tensor, Tensor]:
    """Return inputs ``(40, 6)`` and labels ``(40,)``, the same always, without touching a global generator."""
    generator = torch.Generator().manual_seed(1234)
    x = torch.randn(SIZE, FEATURES, generator=generator)
    return x, torch.randint(CLASSES, (SIZE,), generator=generator)


def network() -> nn.Module:
    """Return a network with buffers and dropout."""
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, CLASSES))


class Loop:
    """A loop over 5 batches of 8 an epoch, in a shuffled order that is keyed by the epoch."""

    total = 14
    """Steps."""
    accumulate = 1
    """Backward passes a step."""
    save_every = 4
    """Backward passes."""
    batch_size = 8

    def __init__(self, job: Job) -> None:
        self.job = job
        self.passes = 0
        self.x, self.y = table()

    @classmethod
    def train(cls, job: Job) -> None:
        """Train: the function that a leg runs."""
        loop = cls(job)
        loop.begin()
        loop.run()

    def begin(self) -> None:
        """Build, then restore."""
        self.seed()
        self.build()
        state = self.job.newest()
        if state is not None:
            self.restore(state)

    def seed(self) -> None:
        """Seed every generator."""
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002

    def build(self) -> None:
        """Build what is trained and what trains it."""
        self.model = self.make_model()
        self.optimizer = self.make_optimizer()
        self.scheduler = self.make_scheduler()

    def make_model(self) -> nn.Module:
        """Return the model."""
        return network()

    def make_optimizer(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.AdamW(self.model.parameters(), lr=0.02)

    def make_scheduler(self) -> Any:
        """Return a scheduler, or None."""
        return torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=5, gamma=0.5)

    def run(self) -> None:
        """Train to the end."""
        if self.passes >= self.total * self.accumulate:
            return
        for x, y in self.batches():
            self.backward(x, y)
            self.passes += 1
            if self.passes % self.accumulate == 0:
                self.update()
            if self.passes % self.save_every == 0:
                self.save()
            if self.passes >= self.total * self.accumulate:
                return

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield batches without end, from the position on."""
        in_epoch = -(-SIZE // self.batch_size)
        while True:
            epoch, position = divmod(self.passes, in_epoch)
            order = torch.randperm(SIZE, generator=torch.Generator().manual_seed(100 + epoch))
            chosen = order.split(self.batch_size)[position]
            yield self.x[chosen], self.y[chosen]

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss."""
        return nn.functional.cross_entropy(self.model(x), y)

    def backward(self, x: Tensor, y: Tensor) -> None:
        """Compute gradients."""
        (self.loss(x, y) / self.accumulate).backward()

    def update(self) -> None:
        """Change the weights."""
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.scheduler is not None:
            self.scheduler.step()

    def save(self) -> None:
        """Write a checkpoint."""
        self.job.save(self.passes, self.state())

    def state(self) -> State:
        """Return everything that must come back."""
        return {
            "passes": self.passes,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict() if self.scheduler is not None else None,
            "gradients": [p.grad for p in self.model.parameters()],
            "rng": rng_state(),
        }

    def restore(self, state: State) -> None:
        """Put everything back."""
        self.passes = state["passes"]
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.scheduler is not None and state["scheduler"] is not None:
            self.scheduler.load_state_dict(state["scheduler"])
        for p, gradient in zip(self.model.parameters(), state["gradients"], strict=True):
            p.grad = gradient
        if "rng" in state:
            restore_rng(state["rng"])


def rng_state() -> State:
    """Return the state of all three global generators."""
    return {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state()}  # noqa: NPY002


def restore_rng(state: State) -> None:
    """Put the three global generators back."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])  # noqa: NPY002
    torch.set_rng_state(state["torch"])
