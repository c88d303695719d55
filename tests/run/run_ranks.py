"""Legs of a run on several ranks: forked processes that talk over gloo, as under torchrun."""

import itertools
import multiprocessing
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from run_training import bits, data, learn, parts
from torch.nn.parallel import DistributedDataParallel

from bitproof.data import Loader
from bitproof.run import Run

_PATIENCE = 60  # seconds
_legs = itertools.count()


@dataclass
class Answer:
    """What one rank's leg ended with."""

    status: int | None = None
    """Of its exit; negative, the signal that killed it."""
    bits: dict[str, int] = field(default_factory=dict)
    step: int = 0
    batches: int = 0
    verdict: str | None = None
    said: str = ""
    """Standard error."""


def train_ranks(
    folder: Path,
    *,
    world: int = 2,
    epochs: int = 2,
    each: Callable[[Run, int, int], None] | None = None,
    before: Callable[[int], None] | None = None,
    **settings: Any,
) -> list[Answer]:
    """Train a leg on every rank, and return what each ended with; when one dies, the others are killed.

    Args:
        folder: of the run.
        world: ranks.
        epochs: of the whole run; with two ranks 6 batches and 3 steps each.
        each: called after the work of each batch, with the run, the rank and the batch's number in this leg.
        before: called with the rank before the run is made.
        settings: of Run.
    """
    parts()  # imports what the first optimizer needs, once for all forks
    context = multiprocessing.get_context("fork")
    name = f"{next(_legs)}"
    folder.parent.mkdir(exist_ok=True, parents=True)
    place = folder.parent / f"{folder.name}-leg-{name}"
    place.mkdir()

    def work(rank: int, answers: Any) -> None:
        with (place / f"{rank}.err").open("wb", buffering=0) as errors:
            os.dup2(errors.fileno(), 2)
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
        warnings.simplefilter("always")
        warnings.showwarning = _print_warning
        dist.init_process_group("gloo", init_method=f"file://{place}/join", rank=rank, world_size=world)
        if before is not None:
            before(rank)
        answers.send(_leg(folder, rank, epochs, each, settings))
        dist.destroy_process_group()

    pipes = [context.Pipe(duplex=False) for _ in range(world)]
    ranks = [context.Process(target=work, args=(rank, pipe[1])) for rank, pipe in enumerate(pipes)]
    for rank in ranks:
        rank.start()
    found = [Answer() for _ in ranks]
    deadline = time.monotonic() + _PATIENCE
    while any(rank.is_alive() for rank in ranks):
        for rank, answer, pipe in zip(ranks, found, pipes, strict=True):
            if pipe[0].poll():
                for key, value in pipe[0].recv().items():
                    setattr(answer, key, value)
            if (rank.exitcode or 0) not in {0, 75} or time.monotonic() > deadline:
                time.sleep(0.2)  # as a launcher, which looks now and then
                for other in ranks:
                    other.kill()
        time.sleep(0.005)
    for index, (rank, answer, pipe) in enumerate(zip(ranks, found, pipes, strict=True)):
        rank.join()
        if not answer.bits and pipe[0].poll():
            for key, value in pipe[0].recv().items():
                setattr(answer, key, value)
        answer.status = rank.exitcode
        answer.said = (place / f"{index}.err").read_text()
    return found


def _leg(
    folder: Path, rank: int, epochs: int, each: Callable[[Run, int, int], None] | None, settings: dict[str, Any]
) -> dict[str, Any]:
    built = parts()
    built["model"] = DistributedDataParallel(built["model"], find_unused_parameters=dist.get_world_size() > 2)
    with Run(folder, **{"save_every": None, **settings}, **built) as run:
        torch.manual_seed(100 + rank)  # each rank draws its own noise
        read, number = Loader(data(), 2 * dist.get_world_size(), shuffle=True), 0
        for _ in run.epochs(epochs):
            for batch in run.batches(read):
                run.log(loss=learn(built, batch))
                number += 1
                if each is not None:
                    each(run, rank, number)
    verdict = run.verdict.verdict if run.verdict is not None else None
    return {"bits": bits(built), "step": run.step, "batches": number, "verdict": verdict}


def _print_warning(message: Any, category: type[Warning], *_where: Any) -> None:
    print(f"{category.__name__}: {message}", file=sys.stderr)


def kill_this_rank() -> None:
    """Die as of a power cut."""
    os.kill(os.getpid(), signal.SIGKILL)
