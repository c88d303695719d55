"""Real trainers and the examples, proved as a user would: the verdict is the documented one."""

import sys
from pathlib import Path

import pytest

from bitproof.compare.verdict import Moment, Verdict
from kit.proofs import ROOT, SCRIPTS, Prover

EXAMPLES = ROOT / "examples"
FORGET = {
    "optimizer": "optimizer-not-restored",
    "scheduler": "schedule-restarted",
    "scaler": "scaler-not-restored",
    "rng": "rng-reseeded",
    "data": "data-restarted",
    "buffers": "buffers-not-restored",
    "ema": "average-not-restored",
    "accumulation": "accumulation-lost",
    "mode": "mode-not-restored",
}


def certain(verdict: Verdict) -> list[str]:
    """Return the codes that a verdict calls certain."""
    return [cause.code for cause in verdict.causes if cause.confidence == "certain"]


def test_hugging_face(proved: Prover) -> None:
    """The Trainer, killed off the save interval, resumes bit for bit."""
    verdict = proved("--steps", 12, "--save-every", 5, script=EXAMPLES / "hf_trainer.py", kill="8")
    assert verdict.verdict == "identical"
    assert verdict.seams[0].resumed_at == Moment(5)


def test_hugging_face_with_augmentation(proved: Prover) -> None:
    """With augmentation drawn in the data set the Trainer parts at the seam: the batch, by its generator; not weights."""
    verdict = proved(
        "--augment", "--steps", 12, "--save-every", 5, script=EXAMPLES / "hf_trainer.py", kill="8", control=True
    )
    assert verdict.verdict == "diverged"
    assert verdict.divergence is not None
    assert (verdict.divergence.step, verdict.divergence.facet) == (6, "batch")
    codes = {cause.code for cause in verdict.causes}
    assert codes & {"data-changed", "rng-shifted", "rng-reseeded", "rng-not-restored"}
    assert not codes & {"weights-not-restored", "optimizer-not-restored", "data-restarted", "unknown"}


def test_lightning(proved: Prover) -> None:
    """Lightning, left in the middle of epoch 2, starts at the reference's first batch, and the verdict says which."""
    verdict = proved("--steps", 30, script=EXAMPLES / "lightning_digits.py", kill="27", control=True)
    assert verdict.verdict == "diverged"
    assert verdict.divergence is not None
    assert (verdict.divergence.step, verdict.divergence.facet) == (26, "batch")
    assert certain(verdict) == ["data-restarted"]
    assert "batch 1" in " ".join([verdict.causes[0].summary, *verdict.causes[0].evidence])


@pytest.mark.slow
def test_characters_reseeded(proved: Prover) -> None:
    """A model fed by random crops that forgets its generator draws the first crops again."""
    verdict = proved(
        "--steps", 12, "--save-every", 4, script=EXAMPLES / "char_model.py", kill="6",
        resume="--resume --forget rng", control=True,
    )  # fmt: skip
    assert verdict.verdict == "diverged"
    assert certain(verdict) == ["rng-reseeded"]


def test_digits_scheduler_forgotten(proved: Prover) -> None:
    """The folk example: the rate is right at the seam, and parts at its next drop."""
    verdict = proved(
        "--steps", 18, script=EXAMPLES / "digits.py", kill="13", resume="--resume --forget scheduler", control=True
    )
    assert certain(verdict) == ["schedule-restarted"]
    assert verdict.divergence is not None
    assert verdict.divergence.step == 17


@pytest.mark.slow
@pytest.mark.parametrize("forgotten", FORGET)
def test_digits_forgets(forgotten: str, proved: Prover) -> None:
    """Each thing that a resume can forget gives its own code, and only that code as certain.

    Checkpoints are taken every 5 batches, so a kill after update 13 resumes inside it.
    """
    verdict = proved(script=EXAMPLES / "digits.py", kill="13", resume=f"--resume --forget {forgotten}", control=True)
    assert verdict.verdict == "diverged"
    assert certain(verdict) == [FORGET[forgotten]]


@pytest.mark.slow
@pytest.mark.timeout(1800)  # 50 legs
def test_digits_every_moment(proved: Prover) -> None:
    """Nothing forgotten: identical for a kill after every update and every backward pass, and for several crashes.

    23 trials, all identical, in 9 minutes on two busy cores (torch 2.13.0).
    """
    verdict = proved("--steps", 10, script=EXAMPLES / "digits.py", kill="every 3,7 5.1,6,9.1", crashes=3, jobs=2)
    assert verdict.verdict == "identical"
    assert len(verdict.trials) == 10 * 2 + 3


@pytest.mark.slow
def test_characters(proved: Prover) -> None:
    """A model fed by random crops, with a rate that warms up from zero, resumes bit for bit at every step of the warm-up."""
    verdict = proved(
        "--steps", 10, "--save-every", 2, script=EXAMPLES / "char_model.py", kill="1 2 3 4 5 7", jobs=2
    )  # fmt: skip
    assert verdict.verdict == "identical"


def torchrun(*words: str) -> dict[str, object]:
    """Return the options that prove the two-rank script under torchrun."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return {"command": [*command, str(SCRIPTS / "ranks.py"), "--out", "{out}", *words]}


def test_two_ranks(proved: Prover) -> None:
    """Two ranks under torchrun are recorded, killed as a tree, resumed, and compared rank by rank."""
    verdict = proved(kill="5", resume="--resume", **torchrun())
    assert verdict.verdict == "identical"
    assert verdict.seams[0].resumed_at == Moment(3)
    for trail in [verdict.trails.reference, *verdict.trails.interrupted, *verdict.trails.resumed]:  # type: ignore[union-attr]
        assert [path.name for path in sorted(Path(trail).glob("*.leg"))] == [
            f"leg-{2 if trail in verdict.trails.resumed else 1:03d}.rank-00{rank}.leg"  # type: ignore[union-attr]
            for rank in range(2)
        ]


def test_ranks_that_share_a_stream(proved: Prover) -> None:
    """Rank 0's generator restored to both ranks is named: they draw the same numbers."""
    verdict = proved(kill="5", resume="--resume --share", control=True, **torchrun())
    assert verdict.verdict == "diverged"
    assert certain(verdict) == ["ranks-share-stream"]
    assert verdict.divergence is not None
    assert verdict.divergence.rank == 1
