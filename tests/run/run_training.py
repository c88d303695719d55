"""A small training with what resumes forget, held by a Run, for the tests."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import TensorDataset

from bitproof import state
from bitproof.data import Loader
from bitproof.fingerprint import digest_bytes, digest_tensor
from bitproof.run import Run

STEPS_AN_EPOCH = 3
WINDOW = 2


class Crash(Exception):  # noqa: N818  # what it stands for is no error
    """What ends a leg in a test."""


def parts() -> dict[str, Any]:
    """Build the parts of the state, with the same first weights each time."""
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    return {
        "model": model,
        "ema": AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9)),
        "optimizer": optimizer,
        "scheduler": StepLR(optimizer, step_size=2, gamma=0.5),
        "scaler": torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=2),
        "count": {"batches": 0},
    }


def data(samples: int = 24) -> TensorDataset:
    """Return a data set of 4 inputs and 2 classes."""
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(
        torch.randn(samples, 4, generator=generator), torch.randint(2, (samples,), generator=generator)
    )


def loader() -> Loader:
    """Return a shuffled loader of 6 batches an epoch."""
    return Loader(data(), 4, shuffle=True)


def learn(parts: dict[str, Any], batch: Any, noise: Callable[[tuple[int, ...]], Any] = np.random.normal) -> float:
    """Do one batch; every second one ends a step."""
    inputs, targets = batch
    inputs = inputs * random.choice((0.5, 1.0)) + torch.as_tensor(noise(size=inputs.shape)).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(parts["model"](inputs), targets)
    parts["scaler"].scale(loss / WINDOW).backward()
    parts["count"]["batches"] += 1
    if parts["count"]["batches"] % WINDOW == 0:
        parts["scaler"].step(parts["optimizer"])
        parts["scaler"].update()
        parts["optimizer"].zero_grad()
        parts["scheduler"].step()
        parts["ema"].update_parameters(parts["model"])
    return loss.item()


def train(
    folder: Path,
    *,
    epochs: int = 2,
    crash_at: int | None = None,
    each: Callable[[Run, int], None] | None = None,
    source: Callable[[], Any] = loader,
    learn: Callable[..., float] = learn,
    **settings: Any,
) -> tuple[Run, dict[str, int]]:
    """Train a leg, and return the run and the bits that it ends with.

    Args:
        folder: of the run.
        epochs: of the whole run.
        crash_at: raise Crash in this batch (of this leg, from 1), after its work.
        each: called after the work of each batch, with the run and the batch's number in this leg.
        source: makes the loader.
        learn: does one batch.
        settings: of Run.
    """
    built = parts()
    with Run(folder, **{"save_every": None, **settings}, **built) as run:
        read, number = source(), 0
        for _ in run.epochs(epochs):
            built["model"].train()
            for batch in run.batches(read):
                run.log(loss=learn(built, batch))
                number += 1
                if each is not None:
                    each(run, number)
                if number == crash_at:
                    raise Crash
            built["model"].eval()
        return run, bits(built)


def bits(built: dict[str, Any]) -> dict[str, int]:
    """Return a digest of each part of the state, the generators among them."""
    document, tensors = state.encode(state.capture(built))
    return {"": digest_bytes(document)} | {name: digest_tensor(tensor) for name, tensor in tensors.items()}
