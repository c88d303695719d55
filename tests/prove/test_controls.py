"""Controls: when a run is not reproducible by itself, the resume is not blamed; and what bounds a proof."""

import sys
from pathlib import Path

import pytest

from bitproof.compare.verdict import Moment
from kit.proofs import TRAIN, Prover, record


def test_unseeded(proved: Prover) -> None:
    """A script that draws from another stream in every run is not reproducible, and the resume is not blamed."""
    verdict = proved("--unseeded-from", 1, kill="5", control=True)
    assert verdict.verdict == "not-reproducible"
    assert verdict.divergence is not None
    assert verdict.divergence.step == 1
    assert "never seeded" in verdict.causes[0].summary
    assert "control" not in proved.said.legs  # the leg that was cut off has shown it already


def test_unseeded_after_the_kill(proved: Prover, reference: Path) -> None:
    """What is nondeterministic only after the kill is found by the second control."""
    verdict = proved("--unseeded-from", 8, kill="5", reference=reference, control=True)
    assert verdict.verdict == "not-reproducible"
    assert verdict.divergence is not None
    assert verdict.divergence.step == 8
    assert proved.said.legs[-1] == "control"
    assert [s.killed_after for s in verdict.seams] == [Moment(5)]


def test_second_control_makes_certain(proved: Prover, reference: Path) -> None:
    """A cause is certain only after the reference was repeated up to the divergence; without that it is likely."""
    sure = proved(kill="5", resume="--resume --forget momentum", reference=reference, control=True)
    assert [(c.code, c.confidence) for c in sure.causes] == [("optimizer-not-restored", "certain")]
    assert proved.said.endings[-1] == "stopped"  # at the divergence, not at the end
    unsure = proved(kill="5", resume="--resume --forget momentum", reference=reference)
    assert [(c.code, c.confidence) for c in unsure.causes] == [("optimizer-not-restored", "likely")]


def test_steps(proved: Prover) -> None:
    """Every leg ends after the step that was given, also where the reference is longer."""
    verdict = proved("--steps", 100_000, kill="5", steps=7)
    assert verdict.verdict == "identical"
    assert verdict.steps.reference == 7
    assert proved.said.endings == ["stopped", "killed", "stopped"]


def test_killed_at_the_last_step(proved: Prover) -> None:
    """A resumed leg that has nothing left to do took the right number of steps: none."""
    verdict = proved("--save-every", 2, kill="4", steps=4)
    assert verdict.verdict == "identical"
    assert verdict.seams[0].killed_after == Moment(4)


def test_output_folder(proved: Prover, reference: Path, tmp_path: Path) -> None:
    """A folder that the script always writes to starts each leg as the user left it, and ends so."""
    folder = tmp_path / "runs"
    folder.mkdir()
    (folder / "step-000.checkpoint.note").write_text("the user's own")
    verdict = proved("--out", folder, kill="5", output=folder, reference=reference)
    assert verdict.verdict == "identical"
    assert verdict.seams[0].resumed_at == Moment(3)
    assert [path.name for path in folder.iterdir()] == ["step-000.checkpoint.note"]


def test_resume_command(proved: Prover, reference: Path) -> None:
    """Another command may resume."""
    command = [sys.executable, str(TRAIN), "--out", "{out}", "--resume"]
    verdict = proved(kill="5", resume="", resume_command=command, reference=reference)
    assert verdict.verdict == "identical"
    assert verdict.seams[0].resumed_at == Moment(3)


def test_never_resumed(proved: Prover, reference: Path) -> None:
    """A script that starts anew although it has a checkpoint is told so."""
    verdict = proved(kill="5", resume="", reference=reference)
    assert verdict.verdict == "not-resumed"
    assert [c.code for c in verdict.causes] == ["not-resumed"]


def test_other_model(proved: Prover, tmp_path: Path) -> None:
    """A reference of another model cannot be compared; the first name that differs is given."""
    record(tmp_path / "wide.trail", sys.executable, TRAIN, "--out", tmp_path / "o", "--width", 6, "--steps", 6)
    verdict = proved("--steps", 6, kill="4", reference=tmp_path / "wide.trail")
    assert (verdict.verdict, verdict.reason) == ("could-not-judge", "incomparable")
    assert "0.weight" in (verdict.message or "")


def test_worst_of_several(proved: Prover, reference: Path) -> None:
    """Of several trials the worst is on top, and each has its fault and its own answer."""
    verdict = proved(kill="2 5", resume="--resume --crash-at 5", reference=reference, jobs=2)
    assert verdict.verdict == "resume-failed"
    assert [(t.fault, t.verdict) for t in verdict.trials] == [("2", "identical"), ("5", "resume-failed")]
    assert any("planted: the resumed run breaks here" in line for line in verdict.output)
    assert "exit status 1" in (verdict.message or "")


@pytest.mark.slow
def test_resume_that_never_ends(proved: Prover, reference: Path) -> None:
    """A resumed leg that hangs is ended at its limit; the message names the limit and the option."""
    verdict = proved(kill="5", resume="--resume --hang-at 6", reference=reference, timeout=40)
    assert (verdict.verdict, verdict.reason) == ("could-not-judge", "timed-out")
    assert "the resumed leg did not end within 40 s" in (verdict.message or "")
    assert "--timeout" in (verdict.message or "")
    assert any("resuming from" in line for line in verdict.output)


@pytest.mark.slow
def test_spread(proved: Prover) -> None:
    """Several crashes can be spread over one run."""
    verdict = proved("--steps", 12, "--save-every", 2, crashes=3)
    assert verdict.verdict == "identical"
    assert [s.killed_after.step for s in verdict.seams] == [3, 6, 9]
