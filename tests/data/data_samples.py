"""Data sets that show which sample was read, under which randomness."""

import os
import random
import time
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, get_worker_info

from bitproof.data import sample_rng


class Drawing(Dataset[torch.Tensor]):
    """Each sample is float64[6]: its index, then a draw from each generator that a data set may use."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> torch.Tensor:
        draws = (random.random(), np.random.random_sample(), np.random.standard_normal(), sample_rng().random())  # noqa: NPY002
        return torch.tensor([index, *draws, torch.rand(1, dtype=torch.float64).item()], dtype=torch.float64)


class Pid(Dataset[tuple[int, int]]):
    """Each sample is its index and the process that read it."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, os.getpid()


class Slow(Drawing):
    """Samples that take their time in workers."""

    def __init__(self, n: int, seconds: float) -> None:
        super().__init__(n)
        self.seconds = seconds

    def __getitem__(self, index: int) -> torch.Tensor:
        if get_worker_info() is not None:
            time.sleep(self.seconds)
        return super().__getitem__(index)


def masked(samples: list[torch.Tensor]) -> torch.Tensor:
    """Collate with a random mask, as masked language models do."""
    batch = torch.stack(samples)
    return torch.cat([batch, torch.rand(len(batch), 1, dtype=torch.float64)], dim=1)


def rows(batch: torch.Tensor) -> list[tuple[float, ...]]:
    """Return a batch's samples as tuples, exact."""
    return [tuple(row) for row in batch.tolist()]


def read(loader: Any, batches: int | None = None) -> list[list[tuple[float, ...]]]:
    """Read the rest of a pass, or that many batches of it."""
    found = []
    for number, batch in enumerate(loader, start=1):
        found.append(rows(batch))
        if number == batches:
            break
    return found
