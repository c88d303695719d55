"""Real processes that find their rank through torch.distributed, resumed as another number of them."""

import json
import multiprocessing
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import data_ranks
import pytest
import torch
from data_ranks import EPOCHS, N, by_order, by_sampler, take
from data_samples import read

from bitproof.data import Loader

LIMIT = 60  # seconds
ALL = 100  # batches: more than there are
Row = tuple[float, ...]


def start(rank: int, size: int, out: Path, make: Callable[..., Loader], state: Any, batches: int) -> None:
    """Join the group, and take batches."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{out}/join-{size}", rank=rank, world_size=size)
    take(out, make, state, batches)
    torch.distributed.destroy_process_group()


def leg(size: int, out: Path, make: Callable[..., Loader], state: Any, batches: int) -> list[Any]:
    """Run as many processes at once, and return what each one saved."""
    context = multiprocessing.get_context("fork")  # torch is imported already
    arguments = [(rank, size, out, make, state, batches) for rank in range(size)]
    processes = [context.Process(target=start, args=each) for each in arguments]
    for process in processes:
        process.start()
    for process in processes:
        process.join(LIMIT)
    assert [process.exitcode for process in processes] == [0] * size
    return saved(out, size)


def saved(out: Path, size: int) -> list[Any]:
    """What each rank saved."""
    return [json.loads((out / f"{size}-{rank}.json").read_text()) for rank in range(size)]


def together(ranks: list[Any]) -> list[list[Row]]:
    """The ranks' shares of each batch, in the order of the stream."""
    batches = []
    for shares in zip(*(rank["seen"] for rank in ranks), strict=True):
        batch: list[Any] = [None] * shares[0][1]
        for rank, (share, _) in enumerate(shares):
            batch[rank :: len(ranks)] = map(tuple, share)
        batches.append(batch)
    return batches


def assert_one_run(legs: list[list[Any]], make: Callable[..., Loader]) -> None:
    """Fail unless the legs saw what one process sees, each sample once an epoch, all ranks at the same position."""
    one = make()
    expected = [batch for _ in range(EPOCHS) for batch in read(one)]
    for ranks in legs:
        assert {rank["world_size"] for rank in ranks} == {len(ranks)}
        assert len({json.dumps(rank["state"]) for rank in ranks}) == 1
    assert [batch for ranks in legs for batch in together(ranks)] == expected
    taken = [int(row[0]) for batch in expected for row in batch]
    for epoch in range(EPOCHS):
        assert sorted(taken[epoch * N : (epoch + 1) * N]) == list(range(N))


@pytest.mark.parametrize("make", [by_order, by_sampler])
@pytest.mark.parametrize(("first", "second"), [(2, 3), (3, 1), (1, 2)])
def test_resumed_as_other_ranks(tmp_path: Path, make: Callable[..., Loader], first: int, second: int) -> None:
    """Processes of one world size stop in epoch 1, others go on: the samples and augmentation of one process, to the end."""
    before = leg(first, tmp_path, make, None, 7)
    after = leg(second, tmp_path, make, before[0]["state"], ALL)

    assert_one_run([before, after], make)


@pytest.mark.slow
def test_torchrun(tmp_path: Path) -> None:
    """The same under torchrun: two processes, then three."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    script = [data_ranks.__file__, str(tmp_path)]
    subprocess.run([*launch, "2", *script, "7"], check=True, timeout=2 * LIMIT, capture_output=True)
    state = str(tmp_path / "2-0.json")
    subprocess.run([*launch, "3", *script, str(ALL), state], check=True, timeout=2 * LIMIT, capture_output=True)

    assert_one_run([saved(tmp_path, 2), saved(tmp_path, 3)], by_order)
