"""A training script with the loader's state in its own checkpoint.

It saves every few steps and, on SIGTERM, at the next step boundary; with --resume it goes on from the checkpoint.
Each step's loss is appended to OUT/losses.txt, the last weights are in OUT/weights.pt.
"""

import argparse
import random
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, get_worker_info

from bitproof.data import Loader


class Points(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """50 points, each with noise from python's, NumPy's and torch's generators."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return 50

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if get_worker_info() is not None:
            time.sleep(self.seconds)
        noise = torch.rand(4) * random.random() + np.random.random_sample()  # noqa: NPY002
        return torch.full((4,), index / 50) + 0.1 * noise, torch.tensor([index % 3 / 3])


def save(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint whole or not at all."""
    temporary = path.with_suffix(".tmp")
    torch.save(state, temporary)
    temporary.replace(path)


def main() -> None:
    """Train for a number of steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--save-every", type=int, default=5)
    parser.add_argument("--sample-seconds", type=float, default=0.0)
    parser.add_argument("--step-seconds", type=float, default=0.0)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    checkpoint = options.out / "checkpoint.pt"

    stop = False

    def on_signal(*_: Any) -> None:
        nonlocal stop
        stop = True

    signal.signal(signal.SIGTERM, on_signal)
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Dropout(0.2), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = Loader(Points(options.sample_seconds), 4, shuffle=True, seed=11, num_workers=options.workers)
    step = 0
    if options.resume:
        state = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["loader"])
        step = state["step"]
        torch.set_rng_state(state["generator"])

    losses = (options.out / "losses.txt").open("a")
    while step < options.steps:
        for inputs, targets in loader:
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            time.sleep(options.step_seconds)
            if stop or step % options.save_every == 0:
                state = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "loader": loader.state_dict(),
                }
                save(checkpoint, state | {"step": step, "generator": torch.get_rng_state()})
            losses.write(f"{step} {loss.item().hex()}\n")
            losses.flush()
            if stop:
                return
            if step == options.steps:
                break
    torch.save(model.state_dict(), options.out / "weights.pt")


if __name__ == "__main__":
    main()
