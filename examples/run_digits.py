"""Train a small network on scikit-learn's digits with a Run: kill it at any moment, start it again, lose nothing.

The loop has what resumes get wrong: dropout and noise (three generators), batch normalisation, AdamW, a rate that drops,
a loss scale that grows until a step overflows, gradients accumulated over two batches, and an averaged copy of the
weights that training never reads. The loop itself has no line about resuming.

    python examples/run_digits.py --out runs/digits      # the same command starts it and goes on with it
    bitproof prove --kill every --jobs 2 -- python examples/run_digits.py --out {out} --epochs 2 --limit 400
"""

import argparse
import random
from importlib.metadata import distribution
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import StepLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import TensorDataset

import bitproof
from bitproof.data import Loader

BATCHES_PER_UPDATE = 2


def load_digits() -> tuple[Tensor, Tensor]:
    """Read the table that scikit-learn ships: importing all of scikit-learn would take longer than the training."""
    table = np.loadtxt(distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz"), delimiter=",")
    return torch.from_numpy(table[:, :-1]).float() / 16, torch.from_numpy(table[:, -1]).long()


def augment(images: Tensor) -> Tensor:
    """Shift the batch by up to one pixel (Python's generator) and add noise (NumPy's)."""
    shifted = images.roll(random.choice((-1, 0, 1)), dims=-1)
    return shifted + torch.from_numpy(np.random.normal(scale=0.1, size=images.shape)).float()


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on scikit-learn's digits, in a run that survives any kill.")
    parser.add_argument("--out", type=Path, required=True, help="folder of the run")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=100)
    parser.add_argument("--limit", type=int, default=1797, help="images to use, also for validation")
    parser.add_argument(
        "--save-every", type=int, default=3, help="updates between checkpoints; 0 for none (default: 3)"
    )
    parser.add_argument("--workers", type=int, default=0)
    options = parser.parse_args()

    torch.set_num_threads(1)  # more only wait for each other on so small a network
    torch.manual_seed(0)
    images, labels = (tensor[: options.limit] for tensor in load_digits())
    model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10))
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    scheduler = StepLR(optimizer, step_size=4, gamma=0.5)
    count = {"batches": 0}  # a counter of the loop is state too
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=3)

    with bitproof.Run(
        options.out,
        save_every=bitproof.Every(steps=options.save_every) if options.save_every else None,
        keep=bitproof.Keep(last=2, best="val_loss"),
        model=model,
        ema=ema,
        optimizer=optimizer,
        scheduler=scheduler,
        scaler=scaler,
        count=count,
    ) as run:
        loader = Loader(
            TensorDataset(images, labels), options.batch_size, shuffle=True, num_workers=options.workers, drop_last=True
        )
        for _ in run.epochs(options.epochs):
            model.train()
            for inputs, targets in run.batches(loader):
                with torch.autocast("cpu", dtype=torch.float16):
                    loss = nn.functional.cross_entropy(model(augment(inputs)), targets)
                scaler.scale(loss / BATCHES_PER_UPDATE).backward()
                count["batches"] += 1
                if count["batches"] % BATCHES_PER_UPDATE == 0:
                    scaler.step(optimizer)
                    scaler.update()
                    optimizer.zero_grad()
                    scheduler.step()
                    ema.update_parameters(model)
                    run.log(loss=loss, rate=scheduler.get_last_lr()[0])
            model.eval()
            with torch.no_grad():
                run.log(val_loss=nn.functional.cross_entropy(model(images), labels))


if __name__ == "__main__":
    main()
