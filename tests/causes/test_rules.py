"""Pure rules on legs that are put together by hand."""

from pathlib import Path

from bitproof.compare.judge import chain, compare_resume, compare_trails, judge, stitch
from bitproof.compare.verdict import Verdict
from bitproof.trail.reader import Leg, Trail
from bitproof.trail.records import Event
from kit.built import leg, micro, state


def judged(reference: Leg, *legs: Leg, controlled: bool = True) -> Verdict:
    """Judge legs of which the first starts anew and each further one resumes."""
    return judge([chain(stitch([reference]), legs)], controlled=controlled)


def moving(last: int, first: int = 0, **kinds: object) -> Leg:
    """Return a leg whose state moves from step to step."""
    return leg([state(i, f"m{i}") for i in range(first, last)], batches=list(range(first, last)), **kinds)  # type: ignore[arg-type]


def test_identical() -> None:
    """Legs that agree to the end have no cause."""
    verdict = judged(moving(8), moving(5), moving(8, 3))
    assert (verdict.verdict, verdict.causes, verdict.steps.identical) == ("identical", [], 5)


def test_unknown_shows_what_differs() -> None:
    """Where no rule fits, the cause is unknown and says what differs and that the rest is equal."""
    other = leg([state(i, f"m{i}") for i in range(3, 8)], batches=[3, 4, "x", 6, 7])
    verdict = judged(moving(8), moving(5), other)
    assert verdict.divergence is not None
    assert (verdict.divergence.step, verdict.divergence.facet) == (6, "batch")
    assert [(c.code, c.confidence) for c in verdict.causes] == [("unknown", "possible")]
    assert "everything before it in causal order is equal" in verdict.causes[0].evidence


def test_the_interrupted_leg_is_judged_first() -> None:
    """A leg that differs before the kill is a run that does not repeat, however wrong the resume is."""
    killed = leg([state(i, f"m{i}") for i in range(5)], batches=[0, 1, "other", 3, 4])
    verdict = judged(moving(8), killed, leg([state("x")]))
    assert verdict.verdict == "not-reproducible"
    assert verdict.divergence is not None
    assert verdict.divergence.step == 3


def test_a_module_that_one_side_never_called_has_no_mode() -> None:
    """A metric that only one leg calls is no difference in mode; another mode of the same module is."""
    modes = [{"Net/": "train"}, {"Net/": "train", "Metric/": "train"}, {"Net/": "eval"}]
    legs = [leg([{**state(i), "mode": mode} for i in range(4)]) for mode in modes]
    assert judged(legs[0], legs[1]).verdict == "identical"
    verdict = judged(legs[0], legs[2])
    assert verdict.divergence is not None
    assert verdict.divergence.facet == "mode"


def test_accumulation_needs_a_seam_inside_a_step() -> None:
    """Gradients that differ at a seam between steps are no lost window."""
    ones = [{**state(i), "gradients": {"Net/w": i}} for i in range(6)]
    others = [{**state(i), "gradients": {"Net/w": "g"}} for i in range(3, 6)]
    verdict = judged(leg(ones), leg(ones[:5]), leg(others, batches=[3, 4, 5]))
    assert "accumulation-lost" not in {c.code for c in verdict.causes}


def test_same_samples_in_another_order() -> None:
    """A batch with the same samples in another order is told as such."""
    passes = [[micro(i, indices=[4 * i, 4 * i + 1, 4 * i + 2])] for i in range(6)]
    turned = [[micro("t", indices=[14, 13, 12])], *passes[4:]]
    states = [state(i) for i in range(6)]
    verdict = judged(leg(states, micros=passes), leg(states[:4], micros=passes[:4]), leg(states[3:], micros=turned))
    assert [c.code for c in verdict.causes] == ["data-reordered"]
    assert "same samples in another order" in verdict.causes[0].summary


def test_a_rate_that_lags_is_measured() -> None:
    """A schedule that comes late by some steps is told by how many."""
    rates = [0.1, 0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.025]
    late = [0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.05, 0.05]
    reference = leg([state(0, None, r) for r in rates], rates=rates)
    killed = leg([state(0, None, r) for r in rates[:4]], rates=rates[:4])
    resumed = leg([state(0, None, r) for r in late[2:]], rates=late[2:], batches=[2, 3, 4, 5, 6, 7])
    verdict = judged(reference, killed, resumed)
    assert [c.code for c in verdict.causes] == ["schedule-restarted"]
    assert "from there on the rates are the reference's 2 steps late" in verdict.causes[0].evidence


def test_settings_that_change_arithmetic_are_certain_only_with_equal_inputs() -> None:
    """Threads that differ explain another loss; a batch that differs too is not put down to them."""
    states = [state(i) for i in range(4)]
    one = leg(states, micros=[[micro(i)] for i in range(4)], environment={"torch.threads": 1})
    two = leg(states[2:], micros=[[micro(i, loss="l")] for i in (2, 3)], environment={"torch.threads": 2})
    verdict = judged(one, leg(states[:3], environment={"torch.threads": 1}), two)
    assert [(c.code, c.confidence) for c in verdict.causes] == [("environment-changed", "certain")]
    other = leg(states[2:], micros=[[micro("x")], [micro(3)]], environment={"torch.threads": 2})
    verdict = judged(one, leg(states[:3], environment={"torch.threads": 1}), other)
    assert "environment-changed" not in {c.code for c in verdict.causes if c.confidence == "certain"}


def test_changed_code_and_packages_are_told_beside_what_does_not_repeat() -> None:
    """An edit, or another package, does not hide that an operation may not repeat; another thread count does."""
    states = [state(i) for i in range(4)]
    passes = [[micro(i)] for i in range(4)]
    other = [*passes[:2], [micro(2, loss="l")], [micro(3, loss="l")]]

    def codes(**environment: object) -> set[str]:
        one = leg(states, micros=passes, environment=dict.fromkeys(environment))
        verdict = compare_trails(_trail(one), _trail(leg(states, micros=other, environment=environment)))
        return {cause.code for cause in verdict.causes}

    found = {"nondeterministic-op", "uninitialized-memory"}
    assert codes() == found
    assert codes(**{"git.dirty": "0123", "package.tqdm": "4"}) == {*found, "environment-changed"}
    assert codes(**{"git.dirty": "0123", "torch.threads": 2}) == {"environment-changed"}


def _trail(one: Leg) -> Trail:
    return Trail(Path("x"), (one,))


def test_a_restart_without_a_checkpoint_is_right() -> None:
    """A leg that was killed before anything was saved starts again by right."""
    assert judged(moving(8), moving(3), moving(8)).verdict == "identical"
    saved = Event(2, 0, "file-saved", {"path": "2.pt"}, None)
    verdict = judged(moving(8), moving(3, events=[saved]), moving(8))
    assert (verdict.verdict, [c.code for c in verdict.causes]) == ("not-resumed", ["not-resumed"])


def test_ranks_are_judged_together() -> None:
    """The first divergence over all ranks counts."""

    def ranked(*legs: Leg) -> Trail:
        for rank, one in enumerate(legs):
            one.rank = rank
        return Trail(Path("x"), tuple(legs))

    parted = leg([state(i, f"m{i}") for i in range(3, 8)], batches=[3, "x", 5, 6, 7])
    reference = ranked(moving(8), moving(8))
    verdict = compare_resume(reference, [ranked(moving(5), moving(5)), ranked(moving(8, 3), parted)], [])
    assert verdict.divergence is not None
    assert (verdict.divergence.rank, verdict.divergence.step) == (1, 5)
