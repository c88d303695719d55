"""What the HTML page draws, taken from placed legs."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Literal

from bitproof.compare.divergence import differing_facets, saved_deltas
from bitproof.compare.timeline import Placed, Side, Timeline
from bitproof.compare.verdict import Cell, Curve, Divergence, LegSpan, Picture
from bitproof.trail.records import RESULT_FACETS


def draw(
    reference: Timeline,
    interrupted: Sequence[Placed],
    resumed: Placed,
    divergence: Divergence | None,
    noise: frozenset[str],
    *,
    fresh: bool = False,
) -> Picture:
    """Collect the legs' spans, the grid of facets × steps and the loss curves."""
    spans = [
        LegSpan(leg="reference", first=1, last=reference.last, ending=_ending(reference.legs[-1])),
        *(LegSpan(leg="interrupted", first=p.first, last=p.last, ending="killed") for p in interrupted),
        LegSpan(leg="resumed", first=resumed.first, last=resumed.last, ending=_ending(resumed)),
    ]
    curves = [
        _curve("reference", reference, 1, reference.last),
        *(_curve("interrupted", p, p.first, p.last) for p in interrupted),
        _curve("resumed", resumed, resumed.first, resumed.last),
    ]
    return Picture(spans, list(_cells(reference, resumed, divergence, noise, fresh=fresh)), curves)


def _ending(placed: Placed) -> Literal["ended", "killed", "stopped"]:
    if placed.leg.ended is None:
        return "killed"
    return "stopped" if placed.leg.ended == "stopped" else "ended"


def _curve(name: Literal["reference", "interrupted", "resumed"], side: Side, first: int, last: int) -> Curve:
    steps = list(range(first, last + 1))
    losses = []
    for step in steps:
        head = side.head(step)
        losses.append(head.micros[-1].loss_value if head is not None and head.micros else None)
    return Curve(leg=name, steps=steps, losses=losses)


def _cells(
    reference: Timeline, resumed: Placed, divergence: Divergence | None, noise: frozenset[str], *, fresh: bool
) -> Iterator[Cell]:
    states: dict[str, list[tuple[int, Literal["same", "different", "first", "unseen"]]]] = {
        facet: [] for facet in (*RESULT_FACETS, "saved")
    }
    for step in range(resumed.first, min(reference.last, resumed.last) + 1):
        one, other = reference.head(step), resumed.head(step)
        different = differing_facets(reference, resumed, step)
        different |= {delta.facet for delta in saved_deltas(reference, resumed, step, noise, fresh=fresh)}
        for facet, row in states.items():
            seen = one is not None and other is not None and facet in one.roots and facet in other.roots
            if divergence is not None and (step, facet) == (divergence.step, divergence.facet):
                row.append((step, "first"))
            elif facet in different:
                row.append((step, "different"))
            elif facet != "saved":
                row.append((step, "same" if seen else "unseen"))
    for facet, row in states.items():
        for state, run in itertools.groupby(row, key=lambda item: item[1]):
            steps = [step for step, _ in run]
            yield Cell(facet=facet, first=steps[0], last=steps[-1], state=state)
