"""The processes that train together, each with its own state in its own folder; one process is the simplest case."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from bitproof.errors import RunError

_FOLDER = "ranks"
T = TypeVar("T")


class Ranks:
    """This process's rank, and what it agrees on with the others.

    Messages go over a gloo group of their own, on the host, so that no device is waited for; they are JSON and numbers.
    With one rank every method answers at once. With several, each is called by all of them.

    Raises:
        RunError: a launcher started several ranks, and torch.distributed is not initialised yet.
    """

    def __init__(self) -> None:
        self.rank, self.world = 0, 1
        self._group: Any = None
        if dist.is_available() and dist.is_initialized():
            self.rank, self.world = dist.get_rank(), dist.get_world_size()
        elif (started := int(os.environ.get("WORLD_SIZE", "1"))) > 1:
            raise RunError(
                f"Run: this is one of {started} ranks, and torch.distributed is not initialised, so they cannot agree on a "
                "checkpoint. Call torch.distributed.init_process_group() before Run(...)."
            )
        if self.world > 1:
            self._group = dist.new_group(backend="gloo")

    def close(self) -> None:
        """Give the group back."""
        group, self._group = self._group, None
        if group is not None and dist.is_initialized():
            dist.destroy_process_group(group)

    def gather(self, value: T, kind: Any) -> list[T]:
        """Return what each rank gives, by rank.

        Args:
            value: what JSON can hold.
            kind: its type, as msgspec reads it.
        """
        if self.world == 1:
            return [value]
        data = torch.frombuffer(bytearray(msgspec.json.encode(value)), dtype=torch.uint8)
        sizes = [int(size) for size in self._gathered(torch.tensor([len(data)]))]
        padded = torch.zeros(max(sizes), dtype=torch.uint8)
        padded[: len(data)] = data
        texts = self._gathered(padded)
        return [
            msgspec.json.decode(bytes(text[:size].tolist()), type=kind) for text, size in zip(texts, sizes, strict=True)
        ]

    def most(self, numbers: Sequence[int]) -> list[int]:
        """Return the greatest that any rank gives, place by place."""
        if self.world == 1:
            return list(numbers)
        greatest = torch.tensor(numbers, dtype=torch.int64)
        dist.all_reduce(greatest, op=dist.ReduceOp.MAX, group=self._group)
        return [int(number) for number in greatest]

    def _gathered(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        found = [torch.empty_like(tensor) for _ in range(self.world)]
        dist.all_gather(found, tensor, group=self._group)
        return found


def reordered_sums(parts: Mapping[str, Any], world: int) -> str | None:
    """Say what makes the first step after a resume differ in bits, with more than two ranks; None if nothing does.

    DistributedDataParallel puts gradients into buckets in the order of their parameters, and after the first backward
    pass of a process anew, in the order in which they became ready. Where a gradient lies decides in which order the
    ranks' values are added, so of three or more the sum may differ in its last bits. With two ranks there is one order.

    Args:
        parts: of the run, by name.
        world: how many ranks.
    """
    for name, part in parts.items():
        if world > 2 and isinstance(part, DistributedDataParallel) and not part.find_unused_parameters:
            return (
                f"{name}: DistributedDataParallel adds gradients in another order after the first step of a process, so with "
                f"{world} ranks the first step after a resume may differ in its last bits. What to do: "
                "DistributedDataParallel(…, find_unused_parameters=True) keeps one order."
            )
    return None


def folder_of(run: Path, rank: int) -> Path:
    """Return where a rank keeps its state: rank 0 in the run's folder, the others in ``ranks/`` below it."""
    return run if rank == 0 else run / _FOLDER / str(rank)


def folders(run: Path) -> list[Path]:
    """List the folders of all ranks that a run has, by rank."""
    others = [int(path.name) for path in (run / _FOLDER).glob("*") if path.name.isdecimal() and path.is_dir()]
    return [folder_of(run, rank) for rank in [0, *sorted(others)]]
