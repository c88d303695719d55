"""Picture: the legs on a time line, with kill and seam."""

from bitproof.compare.verdict import LegSpan, Seam, Verdict
from bitproof.report import svg, wording
from bitproof.report.axis import Axis

_ROW = 46
_BAR = 14
_BAR_TOP = 22
_TURN = 0.25
"""A leg that begins right of this share of the width is labelled towards the left."""


def draw(verdict: Verdict, axis: Axis) -> str | None:
    """Draw one bar a leg; None if no leg is known."""
    legs = verdict.picture.legs if verdict.picture else []
    if not legs:
        return None
    joined = _joined(legs, verdict)
    parts = []
    for row, leg in enumerate(legs):
        parts.append(_leg(leg, axis, row * _ROW, _name(legs, row, verdict), joined.get(row)))
        if row in joined and legs[row - 1].leg != "reference":
            parts.append(_joint(legs[row - 1], leg, axis, row))
    height = len(legs) * _ROW
    marks = axis.marks(verdict, height)
    return svg.picture(height + 22, _in_words(verdict), marks, *parts, axis.labels(height))


def _joined(legs: list[LegSpan], verdict: Verdict) -> dict[int, Seam]:
    """Return the seam at which each leg began, by row: the last legs of a run are the resumed ones."""
    rows = [row for row, leg in enumerate(legs) if leg.leg != "reference"]
    last = min(len(rows), len(verdict.seams))
    return dict(zip(rows[len(rows) - last :], verdict.seams[len(verdict.seams) - last :], strict=True))


def _name(legs: list[LegSpan], row: int, verdict: Verdict) -> str:
    leg = legs[row].leg
    name = wording.leg_name(leg, verdict)
    alike = [number for number, other in enumerate(legs) if other.leg == leg]
    return name if len(alike) == 1 else f"{name} {alike.index(row) + 1}"


def _leg(leg: LegSpan, axis: Axis, top: float, name: str, seam: Seam | None) -> str:
    start, end = axis.start(leg.first), axis.end(leg.last)
    bar_top, middle = top + _BAR_TOP, top + _BAR_TOP + _BAR / 2
    bar = svg.element(
        "rect",
        x=svg.percent(start),
        width=svg.percent(end - start),
        y=bar_top,
        height=_BAR,
        rx=3,
        class_=f"leg {leg.leg}",
    )
    parts = [svg.text(name, x=-10, y=middle + 4, class_="label", text_anchor="end"), bar]
    if seam and seam.resumed_at is not None and seam.killed_after is not None and seam.redone:
        redone = axis.at(seam.killed_after) - start
        parts.append(
            svg.element(
                "rect",
                x=svg.percent(start),
                width=svg.percent(redone),
                y=bar_top,
                height=_BAR,
                rx=3,
                class_="leg redone",
            )
        )
    parts.append(_caption(leg, seam, start, end, top))
    parts.append(_ending(leg, end, middle))
    return "".join(parts)


def _caption(leg: LegSpan, seam: Seam | None, start: float, end: float, top: float) -> str:
    words = []
    if seam and seam.resumed_at is not None:
        words = [f"seam at {wording.moment(seam.resumed_at)}", f"{seam.redone:,} redone"]
    if not words or leg.ending != "ended":
        words.append(f"{leg.ending} after step {leg.last}")
    left = start < _TURN
    place = start if left else end
    return svg.text(
        " · ".join(words), x=svg.percent(place), y=top + 15, class_="note", text_anchor="start" if left else "end"
    )


def _ending(leg: LegSpan, end: float, middle: float) -> str:
    if leg.ending == "ended":
        return ""
    cross = svg.element("path", d=f"M-5 {middle - 5}l10 10m0 -10l-10 10", class_=f"ending {leg.ending}")
    halo = svg.element("path", d=f"M-5 {middle - 5}l10 10m0 -10l-10 10", class_="ending halo")
    return svg.element("svg", halo, cross, x=svg.percent(end), y=0, class_="over")


def _joint(before: LegSpan, leg: LegSpan, axis: Axis, row: int) -> str:
    below = row * _ROW + _BAR_TOP
    return svg.element(
        "line",
        x1=svg.percent(axis.end(before.last)),
        y1=below - _ROW + _BAR,
        x2=svg.percent(axis.start(leg.first)),
        y2=below,
        class_="joint",
    )


def _in_words(verdict: Verdict) -> str:
    legs = verdict.picture.legs if verdict.picture else []
    told = [
        f"{_name(legs, row, verdict)}: steps {leg.first} to {leg.last}, {leg.ending}" for row, leg in enumerate(legs)
    ]
    killed = [seam.killed_after for seam in verdict.seams if seam.killed_after is not None]
    kills = [f"killed after {wording.moment(moment)}" for moment in killed]
    seams = [f"seam at {wording.moment(seam.resumed_at)}" for seam in verdict.seams if seam.resumed_at is not None]
    return "The legs on a time line. " + "; ".join([*told, *kills, *seams]) + "."
