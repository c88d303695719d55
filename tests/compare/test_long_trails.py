"""Comparing stays a matter of seconds on long trails."""

import time
from pathlib import Path
from typing import Any

import pytest

from bitproof.compare.judge import compare_resume
from bitproof.compare.verdict import Moment
from bitproof.trail.file import LegWriter
from bitproof.trail.reader import Trail, read_trail
from bitproof.trail.records import Event, Layout, MicroHead, StepDetail, StepHead, TensorRow, pack_digests

STEPS = 10_000
TENSORS = 100
KEPT = 1_000


def trail(folder: Path, first: int, last: int, digest: Any) -> Trail:
    """Write a trail of steps ``first`` to ``last``; ``digest(facet, step, i)`` gives the contents."""
    writer = LegWriter(folder, 1, 0, {"environment": {}, "world_size": 1})
    names = tuple(f"Net/{i}.weight" for i in range(TENSORS))
    facets = ("weights", "optimizer", "gradients", "hyperparameters")
    writer.begin()
    for number, facet in enumerate(facets, start=1):
        writer.layout(number, Layout(facet, names, ("float32[4]",) * TENSORS))
    writer.layout(9, Layout("saved", names, ("float32[4]",) * TENSORS))
    writer.layout(10, Layout("batch", ("x",), ("float32[4]",)))
    for step in range(first, last + 1):
        digests = {facet: [digest(facet, step, i) for i in range(TENSORS)] for facet in facets}
        rows = [TensorRow(n, pack_digests(digests[facet])) for n, facet in enumerate(facets, start=1)]
        batch = TensorRow(10, pack_digests([step]))
        roots = {facet: hash(tuple(values)) & (2**63 - 1) for facet, values in digests.items()}
        micro = MicroHead(step, pack_digests([step]), None, step, 1.0, None)
        head = StepHead(
            step - first + 1, {**roots, "batch": step, "loss": step}, [micro], {"torch": step}, {}, 1, False, 0.0, 0.1
        )
        kept = step > last - KEPT or step % 100 == 0 or step - first < 2
        detail = StepDetail(rows, [batch], [batch])
        writer.step(head, detail)
        if not kept:
            writer.forget_details(step - first + 1, step - first + 1, 10**9)
        if step % 10 == 0:
            saved = TensorRow(9, pack_digests(digests["weights"]))
            writer.events([Event(step - first + 1, 0, "file-saved", {"path": f"{step}.pt"}, None, saved)])
    writer.commit()
    writer.events([Event(last - first + 1, 0, "ended", {}, None)])
    writer.close()
    return read_trail(folder)


def right(facet: str, step: int, i: int) -> int:
    """Return what the reference holds: every tensor changes at every step, but for a frozen tenth."""
    return hash((facet, step if i % 10 else 0, i)) & (2**63 - 1)


@pytest.fixture(scope="module")
def legs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trail, Trail]:
    """Return a reference and an interrupted leg, both long."""
    folder = tmp_path_factory.mktemp("long")
    return trail(folder / "reference", 1, STEPS, right), trail(folder / "killed", 1, 9_950, right)


@pytest.mark.parametrize("fault", ["none", "optimizer", "weights"])
def test_ten_thousand_steps(tmp_path: Path, legs: tuple[Trail, Trail], fault: str) -> None:
    """Ten thousand steps of a hundred tensors, with a save every ten, are judged in seconds."""

    def wrong(facet: str, step: int, i: int) -> int:
        return right(facet, step, i) if facet != fault else right(facet, step, i) ^ 1

    reference, killed = legs
    resumed = trail(tmp_path / "resumed", 9_901, STEPS, right if fault == "none" else wrong)
    begun = time.process_time()
    verdict = compare_resume(reference, [killed, resumed], [Moment(9_950)])
    seconds = time.process_time() - begun
    assert verdict.seams[0].resumed_at == Moment(9_900)
    if fault == "none":
        assert (verdict.verdict, verdict.steps.identical) == ("identical", 100)
    else:
        assert verdict.divergence is not None
        assert (verdict.divergence.step, verdict.divergence.facet) == (9_901, fault)
    assert seconds < 8, seconds


def test_from_the_start(legs: tuple[Trail, Trail]) -> None:
    """So are ten thousand compared steps."""
    reference, killed = legs
    begun = time.process_time()
    verdict = compare_resume(reference, [killed], [])
    seconds = time.process_time() - begun
    assert verdict.steps.identical == 9_950
    assert seconds < 8, seconds
