"""Every crash is a proof: redone steps are compared, and the result is said and stored."""

import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_training import Crash, learn, loader, parts, train

from bitproof.run import Every, ForgottenWarning, ResumeDiffersWarning, Run
from bitproof.run.proof import Legs
from bitproof.trail import reader


def test_an_exact_resume_is_said_and_stored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The steps after the last checkpoint are taken again, and are the same."""
    with pytest.raises(Crash):
        train(tmp_path, crash_at=10, save_every=Every(steps=3))
    run, _ = train(tmp_path, save_every=Every(steps=3))
    said = capsys.readouterr().err
    assert "resumed at step 3; steps 4–5 will be taken again" in said
    assert "resumed at 3; steps 4–5 redone: identical" in said
    assert run.verdict is not None
    assert run.verdict.steps.identical == 2
    stored = Legs(tmp_path).records()[1]
    assert (stored.leg, stored.step, stored.interrupted_at) == (2, 3, 5)
    assert stored.verdict == run.verdict


def test_a_crash_that_undid_no_step_has_nothing_to_prove(tmp_path: Path) -> None:
    """Where the checkpoint is of the last step, nothing is redone, and nothing is claimed."""
    with pytest.raises(Crash):
        train(tmp_path, crash_at=7, save_every=Every(steps=1))
    assert train(tmp_path)[0].verdict is None


def test_the_leg_that_got_farthest_counts(tmp_path: Path) -> None:
    """After a second crash before the first one's place, the redone steps reach back to the first one's."""
    with pytest.raises(Crash):
        train(tmp_path, crash_at=10, save_every=Every(steps=3))
    with pytest.raises(Crash):
        train(tmp_path, crash_at=2, save_every=None)
    run, _ = train(tmp_path)
    assert run.verdict is not None
    assert (run.verdict.verdict, run.verdict.steps.compared) == ("identical", 2)


def test_a_resume_that_is_not_exact_is_explained(tmp_path: Path) -> None:
    """Noise from a generator that the run does not know: the first redone step differs, and the batch is to blame."""

    def noisy() -> Any:
        hidden = np.random.default_rng(0)
        return lambda built, batch: learn(built, batch, noise=hidden.normal)

    with pytest.raises(Crash):
        train(tmp_path, crash_at=10, save_every=Every(steps=3), learn=noisy())
    with pytest.warns(ResumeDiffersWarning, match=r"(?s)steps 4–5 redone: NOT identical.*batch of step 4.*What to do"):
        run, _ = train(tmp_path, save_every=Every(steps=3), learn=noisy())
    assert run.verdict is not None
    assert run.verdict.verdict == "diverged"
    assert run.verdict.divergence is not None
    assert run.verdict.divergence.facet == "batch"


def test_a_forgotten_schedule_is_named_as_the_cause(tmp_path: Path) -> None:
    """The rates are right at the seam and part later: the redone steps show it, and the rule for it explains it."""

    def leg(crash_at: int | None) -> Run:
        built = parts()
        schedule = built.pop("scheduler")
        with Run(tmp_path, save_every=Every(steps=3), **built) as run:
            source, number = loader(), 0
            for _ in run.epochs(3):
                for batch in run.batches(source):
                    learn(built | {"scheduler": schedule}, batch)
                    number += 1
                    if number == crash_at:
                        raise Crash
        return run

    with pytest.warns(ForgottenWarning, match="StepLR"), pytest.raises(Crash):
        leg(12)
    with pytest.warns(ResumeDiffersWarning, match="schedule-restarted"), pytest.warns(ForgottenWarning):
        run = leg(None)
    assert run.verdict is not None
    assert run.verdict.causes[0].code == "schedule-restarted"


def test_redone_steps_are_judged_at_the_end_too(tmp_path: Path) -> None:
    """A leg that ends before all of them are redone has the ones that it did compared."""
    with pytest.raises(Crash):
        train(tmp_path, crash_at=12, save_every=Every(steps=1), each=lambda run, _: setattr(run._saving, "every", None))
    (tmp_path / "checkpoints").rename(tmp_path / "kept")
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(Crash):
        train(tmp_path, crash_at=5)
    assert Legs(tmp_path).records()[1].verdict is not None


def test_a_damaged_trail_stops_no_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The proof is then left out, and it is said why."""
    with pytest.raises(Crash):
        train(tmp_path, crash_at=10, save_every=Every(steps=3))
    next((tmp_path / "trail").glob("*.leg")).write_bytes(b"SQLite format 3\0 and no more")
    run, _ = train(tmp_path)
    assert isinstance(run, Run)
    assert run.verdict is None
    assert "could not be compared" in capsys.readouterr().err


def test_a_long_leg_is_read_from_the_resumed_step_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proof looks at no step before the checkpoint: what cannot be read there does not matter."""
    monkeypatch.setattr(reader._Heads, "_AT_ONCE", 1)
    with pytest.raises(Crash):
        train(tmp_path, crash_at=10, save_every=Every(steps=3))
    with sqlite3.connect(next((tmp_path / "trail").glob("*.leg"))) as trail:
        trail.execute("UPDATE steps SET head = x'00' WHERE step <= 3")
    trail.close()
    run, _ = train(tmp_path)
    assert run.verdict is not None
    assert (run.verdict.verdict, run.verdict.steps.compared) == ("identical", 2)
