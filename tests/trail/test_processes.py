"""Kills, copies, forks and ranks: real processes, in which a trail must come through whole."""

import multiprocessing
import os
import random
import shutil
import signal
import sqlite3
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import bitproof
from bitproof.trail.attach import attach_for_life
from bitproof.trail.reader import read_trail
from bitproof.trail.settings import Settings

Fork = Callable[[Callable[[], object]], Any]


def steps(count: int, done: Callable[[int], object] = lambda _: None) -> None:
    """Train, and tell of each completed step."""
    net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    for number in range(1, count + 1):
        net(torch.randn(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        done(number)


def test_a_kill_at_any_moment_loses_no_completed_step(fork: Fork, tmp_path: Path) -> None:
    """30 runs, each killed with SIGKILL at a random moment: every trail opens and holds each step that was completed."""
    rng = random.Random(7)
    lengths = []
    for attempt in range(30):
        trail = tmp_path / f"{attempt}.trail"
        reading, writing = os.pipe()

        def train(trail: Path = trail, writing: int = writing) -> None:
            attach_for_life(Settings(trail))
            torch.manual_seed(1)
            steps(100_000, lambda number: os.write(writing, number.to_bytes(4, "little")))

        child = fork(train)
        os.close(writing)
        if attempt % 3:
            os.read(reading, 4)  # let it take a step; else it may be killed while it opens its file
            taken = 1
        else:
            taken = 0
        time.sleep(rng.uniform(0, 0.08))
        os.kill(child.pid, signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
        with os.fdopen(reading, "rb") as pipe:
            taken += len(pipe.read()) // 4
        if not any(trail.glob("*.leg")):
            assert taken == 0
            continue
        leg = read_trail(trail).legs[0]
        # The step that was under way may have been written already.
        assert taken <= len(leg.steps) <= taken + 1
        assert leg.ended is None
        for step in range(1, len(leg.steps) + 1):
            detail = leg.detail(step)
            assert detail is not None
            assert detail.facets.keys() >= {"weights", "gradients", "hyperparameters"}
        lengths.append(len(leg.steps))
    assert len(set(lengths)) > 5


def test_copies_of_a_growing_trail_open(fork: Fork, tmp_path: Path) -> None:
    """A folder that is copied while it is written, file by file, opens and holds the steps of that moment."""
    trail = tmp_path / "a.trail"
    reading, writing = os.pipe()

    def train() -> None:
        attach_for_life(Settings(trail))
        steps(100_000, lambda number: os.write(writing, b".") if number < 20 else None)

    child = fork(train)
    os.close(writing)
    os.read(reading, 1)
    counts = []
    for i in range(10):
        copy = tmp_path / f"copy-{i}"
        shutil.copytree(trail, copy)
        counts.append(len(read_trail(copy).legs[0].steps))
        time.sleep(0.02)
    assert len(read_trail(trail).legs[0].steps) >= counts[-1]
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    os.close(reading)
    assert counts == sorted(counts)
    assert counts[0] >= 1
    assert counts[-1] > counts[0]


def test_a_trail_that_is_being_read_can_be_finished(recorded: Any) -> None:
    """A reader that holds the file open does not make the end of the recording fail."""

    def train() -> None:
        steps(3)
        path = next(recorded.path.glob("*.leg"))
        held.append(sqlite3.connect(path))
        held[0].execute("BEGIN")
        held[0].execute("SELECT count(*) FROM steps").fetchone()

    held: list[sqlite3.Connection] = []
    leg = recorded.run(train)
    held[0].close()
    assert len(leg.steps) == 3
    assert leg.ended == "ended"


def test_a_forked_child_does_not_touch_the_parents_file(fork: Fork, recorded: Any) -> None:
    """A child forked in the middle of a recording that trains writes its own file; the parent's goes on unharmed."""

    def train() -> None:
        steps(2)
        child = fork(lambda: steps(3))
        assert child.wait() == 0, child.said()
        steps(2)

    leg = recorded.run(train)
    assert len(leg.steps) == 4
    files = sorted(path.name for path in recorded.path.iterdir() if path.suffix == ".leg")
    assert files == ["leg-001.rank-000.leg", "leg-001.rank-000.process-2.leg"]
    own = recorded.path.parent / "child.trail"
    own.mkdir()
    shutil.copy(recorded.path / files[1], own / files[0])
    for end in ("-wal", "-shm"):
        if (recorded.path / (files[1] + end)).exists():
            shutil.copy(recorded.path / (files[1] + end), own / (files[0] + end))
    child_leg = read_trail(own).legs[0]
    assert len(child_leg.steps) == 3
    assert child_leg.meta["pid"] != leg.meta["pid"]
    for name, digest in child_leg.steps[0].rng_start.items():
        assert child_leg.generator_state(name, digest) is not None


def _work(folder: str) -> None:
    steps(2)
    Path(folder, "done").touch()


def test_children_of_multiprocessing_that_train_end_their_files(fork: Fork, tmp_path: Path) -> None:
    """A script whose forked worker trains, and which itself does not, leaves the worker's trail, ended properly."""
    trail = tmp_path / "a.trail"

    def script() -> None:
        attach_for_life(Settings(trail))
        worker = multiprocessing.get_context("fork").Process(target=_work, args=(str(tmp_path),))
        worker.start()
        worker.join()
        assert worker.exitcode == 0

    child = fork(script)
    assert child.wait() == 0, child.said()
    (leg,) = read_trail(trail).legs
    assert len(leg.steps) == 2
    assert leg.ended == "ended"
    assert (tmp_path / "done").exists()


def test_loader_workers_write_nothing(fork: Fork, tmp_path: Path) -> None:
    """Processes that load data take no step, and leave neither a file nor a note."""
    trail = tmp_path / "a.trail"

    def script() -> None:
        from torch.utils.data import DataLoader, TensorDataset

        attach_for_life(Settings(trail))
        net = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for (x,) in DataLoader(TensorDataset(torch.randn(8, 2)), 2, num_workers=2, multiprocessing_context="fork"):
            net(x).sum().backward()
            optimizer.step()

    child = fork(script)
    assert child.wait() == 0, child.said()
    assert [path.name for path in trail.iterdir() if path.suffix == ".leg"] == ["leg-001.rank-000.leg"]
    assert not (trail / "notes").exists()
    assert len(read_trail(trail).legs[0].steps) == 4


def test_a_save_in_the_background(recorded: Any) -> None:
    """Saves from another thread, while steps are taken, are noted without harm to either."""
    import threading

    errors: list[BaseException] = []

    def save() -> None:
        try:
            for i in range(100):
                torch.save({f"w{i}": torch.ones(i + 1)}, recorded.path.parent / "a.pt")
        except BaseException as error:  # noqa: BLE001  # it is looked at below
            errors.append(error)

    def train() -> None:
        threads = [threading.Thread(target=save) for _ in range(2)]
        for thread in threads:
            thread.start()
        steps(100)
        for thread in threads:
            thread.join()

    leg = recorded.run(train)
    assert errors == []
    assert len(leg.steps) == 100
    saved = [event for event in leg.events if event.kind == "file-saved"]
    assert len(saved) == 200
    for event in saved:
        assert event.saved is not None
        assert len(leg.tensors(event.saved).names) == 1


RANKS = """
import os, torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(0)
net = nn.parallel.DistributedDataParallel(nn.Linear(2, 1))
data = TensorDataset(torch.arange(32.0).reshape(16, 2))
optimizer = torch.optim.SGD(net.parameters(), 0.001)
for (x,) in DataLoader(data, 2, sampler=DistributedSampler(data)):
    optimizer.zero_grad()
    net(x).sum().backward()
    optimizer.step()
dist.destroy_process_group()
"""


def test_two_ranks_under_torchrun(cli: Any, tmp_path: Path) -> None:
    """Each rank writes a leg with its rank and the world size; batches differ by rank, gradients and weights do not."""
    (tmp_path / "train.py").write_text(RANKS)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    result = cli("record", "-o", "a.trail", "--", *torchrun, "train.py")
    assert result.status == 0, result.err
    assert "bitproof: recorded 4 steps on 2 ranks in a.trail" in result.err
    trail = read_trail(tmp_path / "a.trail")
    assert trail.ranks == (0, 1)
    zero, one = trail.legs
    assert (zero.rank, zero.world_size, one.rank, one.world_size) == (0, 2, 1, 2)
    for mine, theirs in zip(zero.steps, one.steps, strict=True):
        assert mine.roots["gradients"] == theirs.roots["gradients"]
        assert mine.roots["weights"] == theirs.roots["weights"]
        assert mine.roots["batch"] != theirs.roots["batch"]
        assert set(mine.micros[0].indices or []).isdisjoint(theirs.micros[0].indices or [])
    detail = zero.detail(1)
    assert detail is not None
    assert detail.facets["weights"].names == ("Linear/bias", "Linear/weight")


def test_a_block_that_is_never_left(fork: Fork, tmp_path: Path) -> None:
    """``with recording`` in a process that exits in the middle leaves a trail that opens."""

    def die() -> None:
        with bitproof.recording(tmp_path / "a.trail"):
            steps(3)
            os._exit(3)

    assert fork(die).wait() == 3
    leg = read_trail(tmp_path / "a.trail").legs[0]
    assert len(leg.steps) == 3
    assert leg.ended is None
