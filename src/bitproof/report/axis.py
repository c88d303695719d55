"""The axis of steps that all pictures of a verdict share, and the marks across them."""

import math
from dataclasses import dataclass

from bitproof.compare.verdict import Moment, Verdict
from bitproof.report import svg

_TICKS = 5


@dataclass(frozen=True)
class Axis:
    """Steps 1 to ``last``, each as wide as the others."""

    last: int

    def start(self, step: float) -> float:
        """Return where a step begins, as a share of the width."""
        return (step - 1) / self.last

    def middle(self, step: float) -> float:
        """Return the middle of a step, as a share of the width."""
        return (step - 0.5) / self.last

    def end(self, step: float) -> float:
        """Return where a step ends, as a share of the width."""
        return step / self.last

    def at(self, moment: Moment) -> float:
        """Return the place of a moment: a step's end, or its middle if it is inside the step."""
        return self.middle(moment.step) if moment.micro else self.end(moment.step)

    def ticks(self) -> list[int]:
        """Return some round steps, the first step among them."""
        every = _round_up(self.last / _TICKS)
        return sorted({1, *range(every, self.last + 1, every)})

    def labels(self, top: float) -> str:
        """Draw the steps' numbers below ``top``."""
        drawn = []
        for step in self.ticks():
            x = svg.percent(self.middle(step))
            drawn.append(svg.element("line", x1=x, x2=x, y1=top, y2=top + 4, class_="tick"))
            drawn.append(svg.text(str(step), x=x, y=top + 16, class_="label", text_anchor="middle"))
        drawn.append(svg.text("step", x=-10, y=top + 16, class_="label", text_anchor="end"))
        return "".join(drawn)

    def marks(self, verdict: Verdict, height: float) -> str:
        """Draw kills, seams and the first difference as lines over the whole height."""
        drawn = []
        for seam in verdict.seams:
            if seam.killed_after is not None:
                drawn.append(self._mark(self.at(seam.killed_after), height, "kill"))
            if seam.resumed_at is not None:
                drawn.append(self._mark(self.at(seam.resumed_at), height, "seam"))
        if verdict.divergence is not None and 1 <= verdict.divergence.step <= self.last:
            drawn.append(self._mark(self.middle(verdict.divergence.step), height, "parted"))
        return "".join(drawn)

    @staticmethod
    def _mark(share: float, height: float, kind: str) -> str:
        x = svg.percent(share)
        return svg.element("line", x1=x, x2=x, y1=0, y2=height, class_=f"mark {kind}")


def of_verdict(verdict: Verdict) -> Axis | None:
    """Return the axis that holds everything in a verdict's picture; None if there is nothing to draw."""
    picture = verdict.picture
    if picture is None:
        return None
    ends = [
        *(leg.last for leg in picture.legs),
        *(cell.last for cell in picture.cells),
        *(max(curve.steps) for curve in picture.curves if curve.steps),
    ]
    last = max(ends, default=0)
    return Axis(last) if last > 0 else None


def _round_up(number: float) -> int:
    """Return the smallest of 1, 2, 5, 10, 20, 50, … that is not below a number."""
    if number <= 1:
        return 1
    power = int(10.0 ** math.floor(math.log10(number)))
    return next(math.ceil(factor * power) for factor in (1, 2, 5, 10) if factor * power >= number)
