"""A dataset that worker processes can import, however they are started."""

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

GENERATOR = np.random.default_rng(0)
"""Inherited by a forked worker as it is, made anew in a spawned one."""
GENERATOR.random(5)


class Drawing(Dataset[tuple[Tensor, Tensor]]):
    """Draws each sample from the worker's torch generator."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return self.draw(), torch.tensor(i % 3)

    def draw(self) -> Tensor:
        """Return a sample's features."""
        return torch.rand(6)


class FromModule(Drawing):
    """Draws each sample from a generator of the module."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        GENERATOR.random(5)

    def draw(self) -> Tensor:
        """Return a sample's features."""
        return torch.from_numpy(GENERATOR.random(6)).float()
