"""Train on scikit-learn's digits on several ranks, with a Run: kill any of them at any moment, start them again.

Each rank saves its own state, and a save counts when every rank has it. Every rank draws its own noise, from a seed of
its own that is set once, before the loop.

    torchrun --nproc-per-node 2 examples/run_ddp.py --out runs/ddp
    bitproof prove -- torchrun --nproc-per-node 2 examples/run_ddp.py --out {out}
"""

import argparse
import random
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from run_digits import augment, load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import TensorDataset

import bitproof
from bitproof.data import Loader


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on scikit-learn's digits on several ranks.")
    parser.add_argument("--out", type=Path, required=True, help="folder of the run")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=100, help="over all ranks")
    parser.add_argument("--limit", type=int, default=600, help="images to use")
    parser.add_argument("--save-every", type=int, default=4, help="updates between checkpoints (default: 4)")
    options = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    images, labels = (tensor[: options.limit] for tensor in load_digits())
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10)),
        find_unused_parameters=True,  # otherwise gradients are added in another order from the second step on
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    scheduler = StepLR(optimizer, step_size=5, gamma=0.5)

    with bitproof.Run(
        options.out,
        save_every=bitproof.Every(steps=options.save_every),
        keep=bitproof.Keep(last=2),
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
    ) as run:
        for seed in (random.seed, np.random.seed, torch.manual_seed):
            seed(1 + dist.get_rank())
        loader = Loader(TensorDataset(images, labels), options.batch_size, shuffle=True, drop_last=True)
        for _ in run.epochs(options.epochs):
            for inputs, targets in run.batches(loader):
                loss = nn.functional.cross_entropy(model(augment(inputs)), targets)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                scheduler.step()
                run.log(loss=loss)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
