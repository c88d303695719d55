"""Faults: where a run is cut off, by what, and what the resume makes of it."""

from pathlib import Path

import pytest

from bitproof.compare.verdict import Moment
from kit.proofs import Prover


def test_two_crashes_in_one_run(proved: Prover, reference: Path) -> None:
    """A run that is cut off twice has two seams and comes back."""
    verdict = proved(kill="5,8", reference=reference)
    assert verdict.verdict == "identical"
    assert [(s.killed_after.step, s.resumed_at, s.redone) for s in verdict.seams] == [
        (5, Moment(3), 2),
        (8, Moment(6), 2),
    ]
    assert proved.said.legs == ["crash 1 (after step 5)", "crash 2 (after step 8)", "resume"]


def test_before_the_first_checkpoint(proved: Prover, reference: Path) -> None:
    """A run cut off before its first checkpoint is started again without the resume arguments, from step 0."""
    verdict = proved(kill="2", reference=reference)
    assert verdict.verdict == "identical"
    assert verdict.seams[0].resumed_at == Moment(0)


def test_every_step_and_micro_step(proved: Prover) -> None:
    """Every moment of a run is a trial, also before the first update; trials run at the same time when asked to."""
    verdict = proved("--steps", 2, "--passes", 2, "--save-every", 1, kill="every", jobs=2)
    assert verdict.verdict == "identical"
    # A step's checkpoint is written after the moment "right after the step".
    assert [(t.fault, t.seams[0].resumed_at) for t in verdict.trials] == [
        ("1.1", Moment(0)),
        ("1", Moment(0)),
        ("2.1", Moment(1)),
        ("2", Moment(1)),
    ]


@pytest.mark.parametrize("writer", ["torch", "safetensors", "numpy", "json"])
def test_torn_in_place(writer: str, proved: Prover) -> None:
    """A checkpoint that is written under its final name is caught half written, whoever writes it."""
    verdict = proved("--writer", writer, "--in-place", kill="during-save:2")
    assert verdict.verdict == "resume-failed"
    assert [(c.code, c.confidence) for c in verdict.causes] == [("torn-checkpoint", "certain")]
    assert "step-006.checkpoint" in verdict.causes[0].summary
    assert verdict.causes[0].where is not None
    assert verdict.output
    assert any("safetensors" in note and "wrote 3 files" in note for note in proved.said.notes)


@pytest.mark.parametrize(("writer", "number", "resumed_at"), [("torch", 2, 3), ("safetensors", 1, 0)])
def test_torn_under_a_temporary_name(writer: str, number: int, resumed_at: int, proved: Prover) -> None:
    """A checkpoint that is written under a temporary name passes; safetensors has one of its own."""
    verdict = proved("--writer", writer, kill=f"during-save:{number}")
    assert verdict.verdict == "identical"
    assert verdict.seams[0].resumed_at == Moment(resumed_at)


def test_torn_under_a_temporary_name_of_all(proved: Prover) -> None:
    """A temporary name that every checkpoint goes through does not hide that there is one to resume from."""
    verdict = proved("--one-temporary", kill="during-save:2")
    assert (verdict.verdict, verdict.seams[0].resumed_at) == ("identical", Moment(3))


@pytest.mark.slow
@pytest.mark.parametrize("writer", ["torch", "safetensors", "numpy", "json"])
def test_every_save(writer: str, proved: Prover) -> None:
    """Each save in turn may be cut off: what is written under a temporary name comes back from all of them."""
    verdict = proved("--writer", writer, kill="during-save:every", jobs=2)
    assert [t.verdict for t in verdict.trials] == ["identical"] * 3


def test_incomplete_folder(proved: Prover) -> None:
    """A checkpoint of several files that was chosen although one was half written is named as such."""
    verdict = proved("--writer", "folder", kill="during-save:4")
    assert verdict.verdict in {"diverged", "not-resumed"}
    assert verdict.causes[0].code == "incomplete-checkpoint-chosen"
    assert verdict.causes[0].confidence == "certain"
    assert "step-006" in verdict.causes[0].summary


def test_signal_that_saves_and_ends(proved: Prover, reference: Path) -> None:
    """A script that saves on SIGTERM resumes from that very step."""
    verdict = proved("--on-signal", "save-and-end", kill="4", signal_number=15, reference=reference)
    assert verdict.verdict == "identical"
    assert verdict.seams[0].resumed_at == verdict.seams[0].killed_after == Moment(4)


def test_signal_that_saves_and_goes_on(proved: Prover, reference: Path) -> None:
    """A script that saves on SIGUSR1 and goes on is killed some steps later."""
    verdict = proved("--on-signal", "save", "--signal", "SIGUSR1", kill="4", signal_number=10, reference=reference)
    assert verdict.verdict == "identical"
    assert verdict.seams[0].killed_after == Moment(7)
    assert verdict.seams[0].resumed_at == Moment(6)
    assert any("after SIGUSR1 the leg went on for 3 steps" in note for note in proved.said.notes)


def test_signal_that_is_ignored_to_the_end(proved: Prover, reference: Path) -> None:
    """A script that ignores the signal and trains to its end was not cut off, and that is said."""
    verdict = proved("--on-signal", "ignore", kill="8", signal_number=15, reference=reference)
    assert (verdict.verdict, verdict.reason) == ("could-not-judge", "fault-not-reached")
    assert "was sent SIGTERM after step 8 and trained on to its end" in (verdict.message or "")


def test_signal_that_hangs(proved: Prover, reference: Path) -> None:
    """A script that hangs on the signal is killed when its grace is over."""
    verdict = proved("--on-signal", "hang", kill="4", signal_number=15, grace=0.5, reference=reference)
    assert verdict.verdict == "identical"
    assert verdict.seams[0].killed_after == Moment(4)
    assert any("the leg did not end" in note for note in proved.said.notes)
