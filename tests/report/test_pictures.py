"""What the pictures are drawn from: merged columns, the axis, scales and thinned curves."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitproof.compare.verdict import Cell, Curve, LegSpan, Moment, Picture, Seam, Verdict
from bitproof.report import curves, grid, html, timeline
from bitproof.report.axis import Axis

Make = Callable[..., Verdict]
STATES = ("same", "different", "first", "unseen")


def cells_of(states: list[str]) -> list[Cell]:
    """Return a cell a step."""
    return [Cell("loss", step, step, state) for step, state in enumerate(states, 1)]  # type: ignore[arg-type]


def test_merges_neighbours_of_one_state() -> None:
    """Neighbouring steps of one state become one column."""
    (runs,) = grid.merged(cells_of(["same", "same", "first", "different", "different"]), 5).values()
    assert [(run.first, run.last, run.state) for run in runs] == [(1, 2, "same"), (3, 3, "first"), (4, 5, "different")]


def test_a_merged_column_shows_its_difference() -> None:
    """One different step among a thousand is still seen, and the tooltip counts it."""
    states = ["same"] * 10_000
    states[5_000] = "different"
    (runs,) = grid.merged(cells_of(states), 10_000).values()
    assert [run.state for run in runs] == ["same", "different", "same"]
    assert grid._tooltip(runs[1]) == "steps 5001–5025: 1 differ, 24 same"


def test_unobserved_steps_are_never_shown_as_the_same() -> None:
    """A column in which a step was not observed does not claim equality."""
    (runs,) = grid.merged(cells_of(["same", "unseen"]), 2, columns=1).values()
    assert [run.state for run in runs] == ["unseen"]


def test_facets_that_no_step_has_get_no_row(make: Make) -> None:
    """A facet that was observed at no step is named below the picture, not drawn."""
    cells = [Cell("scaler", 1, 9, "unseen"), Cell("loss", 1, 8, "same"), Cell("loss", 9, 9, "unseen")]
    (drawing,) = html.section(make("two-runs", picture=Picture([], cells, [])), 0).drawings
    assert "scaler" not in drawing.svg
    assert "not observed" in drawing.svg
    assert drawing.caption == "Not part of this run, or not observed: scaler."


def test_steps_that_were_not_compared_stay_empty() -> None:
    """A hole between cells is not filled."""
    (runs,) = grid.merged([Cell("loss", 1, 2, "same"), Cell("loss", 5, 6, "same")], 6).values()
    assert [(run.first, run.last) for run in runs] == [(1, 2), (5, 6)]


@given(st.lists(st.sampled_from(STATES), min_size=1, max_size=60), st.integers(1, 20))
def test_merging_loses_no_difference_and_no_step(states: list[str], columns: int) -> None:
    """For any states: at most so many columns, each step counted once, each difference inside a column that shows it."""
    (runs,) = grid.merged(cells_of(states), len(states), columns).values()
    assert len(runs) <= columns
    assert sum(sum(run.steps.values()) for run in runs) == len(states)
    for step, state in enumerate(states, 1):
        (run,) = [run for run in runs if run.first <= step <= run.last]
        if state == "first":
            assert run.state == "first"
        if state == "different":
            assert run.state in {"first", "different"}
        if run.state == "same":
            assert state == "same"


@pytest.mark.parametrize("last", [1, 2, 3, 9, 64, 100, 999, 20_000, 1_000_000])
def test_ticks_are_few_and_round(last: int) -> None:
    """The axis has one to seven labels, the first at step 1, none twice."""
    ticks = Axis(last).ticks()
    assert ticks[0] == 1
    assert 1 <= len(ticks) <= 7
    assert len(set(ticks)) == len(ticks)
    assert ticks[-1] <= last


def test_moments_lie_between_or_inside_steps() -> None:
    """A moment after a step is at the step's end; one after a micro-step is inside the step."""
    axis = Axis(10)
    assert axis.at(Moment(5)) == pytest.approx(axis.start(6))
    assert axis.start(5) < axis.at(Moment(5, 2)) < axis.end(5)


def test_thinning_keeps_spikes() -> None:
    """A single high loss among 20,000 survives, and few points are kept."""
    points = [(step, 1.0) for step in range(1, 20_001)]
    points[12_345] = (12_346, 99.0)
    thinned = curves._thinned(points, 20_000)
    assert (12_346, 99.0) in thinned
    assert len(thinned) <= 1000
    assert thinned == sorted(thinned)


def test_short_curves_are_not_thinned() -> None:
    """Every point of a short run is drawn."""
    points = [(step, float(step)) for step in range(1, 65)]
    assert curves._thinned(points, 64) == points


def test_differences_are_said_in_words(make: Make) -> None:
    """The text names where the losses part and where they are furthest apart."""
    drawn = [Curve("reference", [1, 2, 3], [1.0, 1.0, 1.0]), Curve("resumed", [2, 3], [1.0, 1.5])]
    verdict = make("diverged", picture=Picture([], [], drawn))
    assert curves.summary(verdict) == "The losses part at step 3 by 0.5; the largest difference is 0.5, at step 3."


@pytest.mark.parametrize("losses", [[0.0], [5.0, 5.0], [-1e-30, 1e-30], [1e300, -1e300], [None, 1.0, None]])
def test_odd_losses_draw(make: Make, losses: list[float | None]) -> None:
    """One point, a constant, tiny and huge losses and holes are drawn without an error."""
    steps = list(range(1, len(losses) + 1))
    drawn = [Curve("reference", steps, losses), Curve("resumed", steps, [loss and loss * 1.5 for loss in losses])]
    verdict = make("diverged", picture=Picture([], [], drawn))
    axis = Axis(len(losses))
    for drawing in (curves.draw_losses(verdict, axis), curves.draw_differences(verdict, axis)):
        assert drawing is not None
        assert "nan" not in drawing
        assert "inf" not in drawing


def test_time_line_of_two_crashes(make: Make) -> None:
    """Each resumed leg shows its own seam, and a kill is told in words."""
    legs = [
        LegSpan("reference", 1, 20, "ended"),
        LegSpan("interrupted", 1, 5, "killed"),
        LegSpan("interrupted", 5, 9, "killed"),
        LegSpan("resumed", 9, 20, "ended"),
    ]
    seams = [Seam(Moment(5), Moment(4), 1), Seam(Moment(9), Moment(8), 1)]
    drawing = timeline.draw(make("identical", seams=seams, picture=Picture(legs)), Axis(20)) or ""
    for part in (
        "interrupted 1",
        "interrupted 2",
        "seam at step 4 · 1 redone · killed after step 9",
        "seam at step 8 · 1 redone",
    ):
        assert part in drawing
    assert "killed after step 5; killed after step 9; seam at step 4; seam at step 8." in drawing
