"""Picture: the loss of each leg, and below it how far it is from the reference's, on a logarithmic scale."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from bitproof.compare.verdict import Curve, Verdict
from bitproof.report import svg, wording
from bitproof.report.axis import Axis

_LOSS_HEIGHT = 190
_DIFFERENCE_HEIGHT = 120
_MARGIN = 8
_ZERO = 18
"""The band below the logarithmic scale in which a difference of zero is drawn."""
_COLUMNS = 500
_TICKS = 4
_WIDTH = 1000.0

Point = tuple[int, float]
Scale = Callable[[float], float]
"""From a number to its place, in pixels from the top."""


@dataclass(frozen=True)
class Line:
    """One leg's numbers: (step, number), finite ones only."""

    leg: str
    points: list[Point]


def draw_losses(verdict: Verdict, axis: Axis) -> str | None:
    """Draw the loss curves; None if no loss is known."""
    lines = [line for line in map(_line, _curves(verdict)) if line.points]
    if not lines:
        return None
    low, high, ticks = _linear(loss for line in lines for _, loss in line.points)

    def down(loss: float) -> float:
        return _MARGIN + (high - loss) / (high - low) * (_LOSS_HEIGHT - 2 * _MARGIN)

    scale = [(down(tick), f"{tick:.6g}") for tick in ticks]
    paths = [_path(line, axis, down) for line in lines]
    label = "Loss by step: " + "; ".join(f"{line.leg}, {_ends(line)}" for line in lines) + "."
    return _panel(_LOSS_HEIGHT, label, scale, paths, axis, verdict)


def draw_differences(verdict: Verdict, axis: Axis) -> str | None:
    """Draw the absolute difference of each leg from the reference; None if no step has both losses."""
    lines = differences(verdict)
    if not lines:
        return None
    sizes = [size for line in lines for _, size in line.points if size > 0]
    low, high = _decades(sizes)
    bottom = _DIFFERENCE_HEIGHT - _ZERO

    def down(size: float) -> float:
        if size == 0:
            return _DIFFERENCE_HEIGHT - _ZERO / 2
        return _MARGIN + (high - math.log10(size)) / (high - low) * (bottom - 2 * _MARGIN)

    scale = [(down(10.0**power), f"1e{power}") for power in _powers(low, high)] if sizes else []
    scale.append((down(0), "0"))
    paths = [_path(line, axis, down) for line in lines]
    height = _DIFFERENCE_HEIGHT if sizes else _ZERO + 2 * _MARGIN
    if not sizes:
        scale, paths = [(height / 2, "0")], [_path(line, axis, lambda _: height / 2) for line in lines]
    return _panel(height, summary(verdict) or "", scale, paths, axis, verdict)


def differences(verdict: Verdict) -> list[Line]:
    """Return each leg's absolute difference from the reference, where both have a finite loss."""
    curves = _curves(verdict)
    reference = {step: loss for curve in curves if curve.leg == "reference" for step, loss in _line(curve).points}
    others = [_line(curve) for curve in curves if curve.leg != "reference"]
    lines = [Line(o.leg, [(s, abs(loss - reference[s])) for s, loss in o.points if s in reference]) for o in others]
    return [line for line in lines if line.points]


def summary(verdict: Verdict) -> str | None:
    """Say in words how far the losses are apart; None if no step has both."""
    points = [point for line in differences(verdict) for point in line.points]
    if not points:
        return None
    apart = [(step, size) for step, size in points if size > 0]
    if not apart:
        return f"The losses are equal at all {wording.count(len({step for step, _ in points}), 'step')} that have both."
    first, size = min(apart)
    worst_step, worst = max(apart, key=lambda point: point[1])
    return (
        f"The losses part at step {first} by {size:.4g}; the largest difference is {worst:.4g}, at step {worst_step}."
    )


def unplotted(verdict: Verdict) -> int:
    """Count the losses that are infinite or not a number, and so have no place in the picture."""
    losses = [loss for curve in _curves(verdict) for loss in curve.losses]
    return sum(loss is not None and not math.isfinite(loss) for loss in losses)


def _curves(verdict: Verdict) -> list[Curve]:
    return verdict.picture.curves if verdict.picture else []


def _line(curve: Curve) -> Line:
    pairs = zip(curve.steps, curve.losses, strict=True)
    return Line(curve.leg, [(step, loss) for step, loss in pairs if loss is not None and math.isfinite(loss)])


def _panel(
    height: float, label: str, scale: list[tuple[float, str]], paths: list[str], axis: Axis, verdict: Verdict
) -> str:
    grid = []
    for y, tick in scale:
        grid.append(svg.element("line", x1=0, x2="100%", y1=y, y2=y, class_="grid"))
        grid.append(svg.text(tick, x=-10, y=y + 4, class_="label", text_anchor="end"))
    marks = axis.marks(verdict, height)
    return svg.picture(height + 22, label, *grid, marks, svg.stretched(_WIDTH, height, *paths), axis.labels(height))


def _path(line: Line, axis: Axis, down: Scale) -> str:
    points = _thinned(line.points, axis.last)
    gap = 1 if len(points) == len(line.points) else 2 * axis.last / _COLUMNS + 1
    runs: list[list[str]] = []
    previous = -math.inf
    for step, number in points:
        if step - previous > gap:
            runs.append([])
        runs[-1].append(f"{axis.middle(step) * _WIDTH:.1f} {down(number):.1f}")
        previous = step
    drawn = "".join(f"M{'L'.join(run)}" + ("h0" if len(run) == 1 else "") for run in runs)
    return svg.element("path", d=drawn, class_=f"curve {line.leg}")


def _thinned(points: list[Point], last: int) -> list[Point]:
    """Keep the lowest and the highest of each column, so that no spike is lost."""
    if len(points) <= 2 * _COLUMNS:
        return points
    columns: dict[int, list[Point]] = {}
    for point in points:
        columns.setdefault((point[0] - 1) * _COLUMNS // last, []).append(point)
    kept: list[Point] = []
    for column in columns.values():
        kept += sorted({min(column, key=lambda p: p[1]), max(column, key=lambda p: p[1])})
    return kept


def _linear(losses: Iterable[float]) -> tuple[float, float, list[float]]:
    """Return the ends of a linear scale, and some round numbers on it."""
    known = list(losses)
    low, high = min(known), max(known)
    if low == high:
        low, high = low - (abs(low) / 10 or 1), high + (abs(high) / 10 or 1)
    raw = (high - low) / _TICKS
    power = 10.0 ** math.floor(math.log10(raw))
    every = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw)
    first, final = math.ceil(low / every), math.floor(high / every)
    return low, high, [number * every for number in range(first, final + 1)]


def _decades(sizes: list[float]) -> tuple[int, int]:
    """Return the powers of ten that enclose all sizes."""
    if not sizes:
        return 0, 1
    low, high = math.floor(math.log10(min(sizes))), math.ceil(math.log10(max(sizes)))
    return low, max(high, low + 1)


def _powers(low: int, high: int) -> range:
    return range(low, high + 1, max(-(-(high - low) // (_TICKS - 1)), 1))


def _ends(line: Line) -> str:
    (first, start), (last, end) = line.points[0], line.points[-1]
    return f"{start:.4g} at step {first} to {end:.4g} at step {last}"
