"""Train a small network on scikit-learn's digits, in a loop that survives any kill.

The loop holds everything that a resume can forget: dropout and augmentation (three random number generators), batch
normalisation (buffers) of which one layer is frozen half-way (train/eval mode), AdamW, a rate that drops, a loss scale
that grows until a step overflows and is skipped, gradients accumulated over two batches with checkpoints also taken
between them, an averaged copy of the weights that training never reads, and a shuffled order left in mid-epoch.

    python examples/digits.py --out run                                # train, a checkpoint every 5 batches
    python examples/digits.py --out run --resume                       # go on from the newest checkpoint
    python examples/digits.py --out run --resume --forget scheduler    # the same, with one thing left out
"""

import argparse
import random
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import StepLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Sampler, TensorDataset

FORGETTABLE = ("optimizer", "scheduler", "scaler", "rng", "data", "buffers", "ema", "accumulation", "mode")
BATCH_SIZE = 100  # 18 batches an epoch, the last one smaller
BATCHES_PER_UPDATE = 2
FREEZE_AFTER = 8  # updates; then the first normalisation layer keeps its statistics
RATE_DROPS_EVERY = 8  # updates


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lower = nn.Linear(64, 64)
        self.lower_norm = nn.BatchNorm1d(64)
        self.upper = nn.Linear(64, 32)
        self.upper_norm = nn.BatchNorm1d(32)
        self.dropout = nn.Dropout(0.2)
        self.classify = nn.Linear(32, 10)

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.lower_norm(self.lower(images.flatten(1))).relu()
        hidden = self.upper_norm(self.upper(hidden)).relu()
        return self.classify(self.dropout(hidden))


class ShuffledBatches(Sampler[list[int]]):
    """Batches of indices, an epoch a pass, in an order that depends on nothing but (seed, epoch, position)."""

    def __init__(self, size: int, seed: int) -> None:
        self.size, self.seed = size, seed
        self.epoch = self.position = 0

    def __iter__(self) -> Iterator[list[int]]:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        batches = torch.randperm(self.size, generator=generator).split(BATCH_SIZE)
        while self.position < len(batches):
            # Counted as it is handed out. That is right because nothing is fetched ahead (num_workers=0).
            self.position += 1
            yield batches[self.position - 1].tolist()
        self.epoch, self.position = self.epoch + 1, 0

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.position = state["epoch"], state["position"]


def load_digits() -> TensorDataset:
    """Read the table that scikit-learn ships: importing all of scikit-learn would take longer than the training."""
    table = np.loadtxt(distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz"), delimiter=",")
    pixels = torch.from_numpy(table[:, :-1]).float() / 16
    return TensorDataset(pixels.unflatten(1, (8, 8)), torch.from_numpy(table[:, -1]).long())


def augment(images: Tensor) -> Tensor:
    """Shift the batch by up to one pixel (Python's generator) and add noise (NumPy's)."""
    shifted = images.roll(random.choice((-1, 0, 1)), dims=-1)
    return shifted + torch.from_numpy(np.random.normal(scale=0.1, size=images.shape)).float()


class Training:
    """Everything that changes while the training goes on."""

    def __init__(self, seed: int) -> None:
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        dataset = load_digits()
        self.order = ShuffledBatches(len(dataset), seed)
        # A loader draws a number whenever its iterator is made, so also at a resume: from a generator of its own.
        self.loader = DataLoader(dataset, batch_sampler=self.order, generator=torch.Generator())
        self.model = Net()
        self.average = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.02, weight_decay=0.01)
        self.scheduler = StepLR(self.optimizer, step_size=RATE_DROPS_EVERY, gamma=0.3)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=4)
        self.batches = 0

    def run(self, *, updates: int, save_every: int, folder: Path) -> None:
        last = updates * BATCHES_PER_UPDATE
        while self.batches < last:
            self.run_epoch(last=last, save_every=save_every, folder=folder)

    def run_epoch(self, *, last: int, save_every: int, folder: Path) -> None:
        for images, labels in self.loader:
            loss = self.backward(augment(images), labels)
            self.batches += 1
            if self.batches % BATCHES_PER_UPDATE == 0:
                self.update()
                print(
                    f"update {self.batches // BATCHES_PER_UPDATE:3}  epoch {self.order.epoch + 1}  loss {loss:.4f}"
                    f"  rate {self.scheduler.get_last_lr()[0]:.4g}  scale {self.scaler.get_scale():g}",
                    flush=True,
                )
            if self.batches % save_every == 0 or self.batches == last:
                self.save(folder)
            if self.batches == last:
                return

    def backward(self, images: Tensor, labels: Tensor) -> float:
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.cross_entropy(self.model(images), labels)
        self.scaler.scale(loss / BATCHES_PER_UPDATE).backward()
        return loss.item()

    def update(self) -> None:
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        self.scheduler.step()
        self.average.update_parameters(self.model)
        if self.batches == FREEZE_AFTER * BATCHES_PER_UPDATE:
            self.model.lower_norm.eval()

    def save(self, folder: Path) -> None:
        state = {
            "batches": self.batches,
            "model": self.model.state_dict(),
            "average": self.average.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "scaler": self.scaler.state_dict(),
            "order": self.order.state_dict(),
            "rng": rng_state(),
            "gradients": {name: weight.grad for name, weight in self.model.named_parameters()},
            "training": {name: module.training for name, module in self.model.named_modules()},
        }
        path = folder / f"checkpoint-{self.batches:05}.pt"
        unfinished = path.with_suffix(".tmp")
        torch.save(state, unfinished)
        unfinished.replace(path)  # all of it or nothing

    def load(self, path: Path, forget: set[str]) -> None:
        state = torch.load(path)
        self.batches = state["batches"]
        weights = dict(self.model.named_parameters())
        if "buffers" in forget:
            self.model.load_state_dict({name: state["model"][name] for name in weights}, strict=False)
        else:
            self.model.load_state_dict(state["model"])
        if "ema" not in forget:
            self.average.load_state_dict(state["average"])
        if "optimizer" in forget:
            # The rate belongs to the groups and comes back; the moments do not.
            state["optimizer"]["state"] = {}
        self.optimizer.load_state_dict(state["optimizer"])
        if "scheduler" not in forget:
            self.scheduler.load_state_dict(state["scheduler"])
        if "scaler" not in forget:
            self.scaler.load_state_dict(state["scaler"])
        if "data" in forget:
            state["order"]["position"] = 0
        self.order.load_state_dict(state["order"])
        if "rng" not in forget:
            restore_rng(state["rng"])
        if "accumulation" not in forget:
            for name, weight in weights.items():
                weight.grad = state["gradients"][name]
        if "mode" not in forget:
            for name, module in self.model.named_modules():
                module.training = state["training"][name]


def rng_state() -> dict[str, object]:
    algorithm, keys, *rest = np.random.get_state()
    # As a list, so that torch.load needs no leave to run code.
    return {"python": random.getstate(), "numpy": (algorithm, keys.tolist(), *rest), "torch": torch.get_rng_state()}


def restore_rng(state: dict[str, object]) -> None:
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on scikit-learn's digits, resumable at any batch.")
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoints")
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint in --out")
    parser.add_argument(
        "--forget", action="append", choices=FORGETTABLE, default=[], help="leave this out when resuming (repeatable)"
    )
    parser.add_argument("--steps", type=int, default=24, help="updates in all, of two batches each (default: 24)")
    parser.add_argument("--save-every", type=int, default=5, help="batches between checkpoints (default: 5)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="more only wait for each other on so small a network")
    options = parser.parse_args()

    torch.set_num_threads(options.threads)
    options.out.mkdir(parents=True, exist_ok=True)
    training = Training(options.seed)
    if options.resume:
        newest = max(options.out.glob("checkpoint-*.pt"), default=None)  # the names sort by batch
        if newest is None:
            print(f"no checkpoint in {options.out}: starting from the beginning")
        else:
            training.load(newest, set(options.forget))
            print(f"resumed from {newest} at batch {training.batches}")
    training.run(updates=options.steps, save_every=options.save_every, folder=options.out)


if __name__ == "__main__":
    main()
