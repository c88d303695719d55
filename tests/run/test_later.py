"""Parts that are made only when the loop first needs them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from run_training import Crash, bits, learn, loader, parts

from bitproof.errors import ResumeRefusedError, RunStateError, UsageError
from bitproof.run import Every, Run


def leg(
    folder: Path, *, crash_at: int | None = None, made_at: int = 3, save_every: Every | None = None
) -> dict[str, int]:
    """Train with a scaler that is made in a batch of each leg; a scaler before it would have been the same."""
    built = parts()
    scaler = built.pop("scaler")
    with Run(folder, save_every=save_every, later=["scaler"], **built) as run:
        read, number = loader(), 0
        for _ in run.epochs(2):
            for batch in run.batches(read):
                if number == made_at:
                    run.register(scaler=scaler)
                number += 1
                learn(built | {"scaler": scaler}, batch)
                if number == crash_at:
                    raise Crash
    return bits(built | {"scaler": scaler})


def test_a_scaler_that_is_made_later_comes_back(tmp_path: Path) -> None:
    """Its scale and growth counter wait for it, and go on as in a run that never crashed."""
    whole = leg(tmp_path / "never", made_at=0)
    with pytest.raises(Crash):
        leg(tmp_path / "run", crash_at=7, made_at=0, save_every=Every(steps=1))
    assert leg(tmp_path / "run", made_at=0, save_every=Every(steps=1)) == whole


def test_what_was_saved_of_it_is_saved_again_while_it_waits(tmp_path: Path) -> None:
    """A leg that saves before the part is made loses nothing of it."""
    first = {"best": [0.5]}
    with Run(tmp_path, later=["best"], **parts()) as run:
        run.register(best=first)
        run.save()
    with Run(tmp_path, later=["best"], **parts()) as run:
        run.restore()
        run.save()
    second: dict[str, Any] = {"best": []}
    with Run(tmp_path, later=["best"], **parts()) as run:
        run.restore()
        run.register(best=second)
    assert second == first


def test_one_that_was_not_there_at_the_save_starts_fresh(tmp_path: Path) -> None:
    """Registered before the loop begins or after, there is nothing to put back, and nothing to refuse."""
    with Run(tmp_path, later=["best"], **parts()) as run:
        run.save()
    for before in (True, False):
        with Run(tmp_path, save_every=None, later=["best"], **parts()) as run:
            if before:
                run.register(best={})
            run.restore()
            if not before:
                run.register(best={})
            assert run.resumed


def test_what_was_not_announced_is_refused(tmp_path: Path) -> None:
    """A part that comes as a surprise might have started fresh in silence; a name twice is a mistake."""
    with Run(tmp_path, later=["scaler"], **parts() | {"scaler": {}}) as run:
        with pytest.raises(UsageError, match=r"register\(ema=…\): it is one already"):
            run.register(ema={})
        with pytest.raises(UsageError, match=r"register\(other=…\): expected one of later=\['scaler'\].*Announce it"):
            run.register(other={})
        with pytest.raises(RunStateError, match=r"run.register\(scaler=1\).*Put it into a dict"):
            run.register(scaler=1)
    with pytest.raises(UsageError, match=r"expected names in a list, such as later=\['scaler'\]"):
        Run(tmp_path, later="scaler", **parts())


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    """A part of another kind than the saved one is not left as it is without a word."""
    built = parts()
    scaler = built.pop("scaler")
    with Run(tmp_path, later=["scaler"], **built) as run:
        run.register(scaler=scaler)
        run.save()
    with Run(tmp_path, later=["scaler"], **built) as run:
        run.restore()
        with pytest.raises(ResumeRefusedError, match=r"scaler: refused: it was enabled"):
            run.register(scaler=torch.amp.GradScaler("cpu", enabled=False))
