"""One rank of several that take batches in step; also a script for torchrun."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from data_samples import Drawing, rows
from torch.utils.data import BatchSampler, RandomSampler

from bitproof.data import Loader

N, EPOCHS, SEED, BATCH = 30, 3, 5, 6


def by_order(**options: Any) -> Loader:
    """A loader of global batches of the order."""
    return Loader(Drawing(N), BATCH, shuffle=True, seed=SEED, **options)


def by_sampler(**options: Any) -> Loader:
    """A loader of global batches of torch's own batch sampler."""
    sampler = BatchSampler(RandomSampler(range(N)), BATCH, drop_last=False)
    return Loader(Drawing(N), seed=SEED, batch_sampler=sampler, **options)


def take(out: Path, make: Callable[..., Loader], state: Any, batches: int) -> None:
    """Take some batches in step with the other ranks of torch.distributed; save what was seen, and the state."""
    rank = torch.distributed.get_rank()
    loader = make(num_workers=rank % 2)
    if state:
        loader.load_state_dict(state)
    seen: list[Any] = []
    for epoch in range(loader.epoch, EPOCHS):
        for batch in loader:
            count = torch.tensor([len(batch)])
            torch.distributed.all_reduce(count)  # would hang, or fail, if ranks took different numbers of batches
            seen.append((rows(batch), int(count)))
            if len(seen) == batches:
                break
        if len(seen) == batches:
            break
        assert loader.epoch == epoch + 1
    text = json.dumps({"seen": seen, "state": loader.state_dict(), "world_size": loader.world_size})
    (out / f"{loader.world_size}-{rank}.json").write_text(text)


def main() -> None:
    """Run as: torchrun data_ranks.py OUT BATCHES [STATE.json]."""
    out, batches, *state = sys.argv[1:]
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    take(Path(out), by_order, json.loads(Path(state[0]).read_text())["state"] if state else None, int(batches))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
