"""Picture: facets × steps, coloured by whether they are the same as the reference's."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from bitproof.compare.verdict import Cell, Verdict
from bitproof.report import svg, wording
from bitproof.report.axis import Axis

State = Literal["same", "different", "first", "unseen"]
_STRONGEST: tuple[State, ...] = ("first", "different", "unseen", "same")
_IN_WORDS = {"same": "same", "different": "differ", "first": "the first difference", "unseen": "not observed"}
_COLUMNS = 400
_FEWEST_COLUMNS = 50
_PARTS = 1500
"""More rectangles than this make a page heavy: columns are then merged further."""
_ROW = 24
_CELL = 18


@dataclass
class Column:
    """What happened to one facet over a few steps: how many steps are in each state."""

    first: int
    last: int
    steps: dict[State, int] = field(default_factory=dict)

    @property
    def state(self) -> State | None:
        """The state to show: the most telling one; None if no step of the column is known."""
        return next((state for state in _STRONGEST if state in self.steps), None)


def draw(verdict: Verdict, axis: Axis) -> str | None:
    """Draw one row a facet and one column a step, or a few steps; None if nothing was compared."""
    hidden = unseen_facets(verdict)
    cells = [cell for cell in _cells(verdict) if cell.facet not in hidden]
    if not cells:
        return None
    rows = _small_enough(cells, axis.last)
    height = len(rows) * _ROW
    drawn = [_row(facet, runs, axis, number * _ROW) for number, (facet, runs) in enumerate(rows.items())]
    return svg.picture(
        height + 18, _in_words(verdict, rows), axis.marks(verdict, height), *drawn, axis.labels(height - 2)
    )


def unseen_facets(verdict: Verdict) -> list[str]:
    """List the facets that were observed at no step, which get no row."""
    seen = {cell.facet for cell in _cells(verdict) if cell.state != "unseen"}
    return [facet for facet in dict.fromkeys(cell.facet for cell in _cells(verdict)) if facet not in seen]


def _cells(verdict: Verdict) -> list[Cell]:
    return verdict.picture.cells if verdict.picture else []


def merged(cells: list[Cell], last: int, columns: int = _COLUMNS) -> dict[str, list[Column]]:
    """Merge steps 1 to ``last`` into at most ``columns`` columns a facet, neighbours of one state into one.

    A column that holds a difference shows it; one that holds an unobserved step is not shown as the same.
    """
    every = max(-(-last // columns), 1)
    counted: dict[str, dict[int, Column]] = {}
    for cell in cells:
        row = counted.setdefault(cell.facet, {})
        for number, first, end in _pieces(cell, every):
            column = row.setdefault(number, Column(number * every + 1, min((number + 1) * every, last)))
            column.steps[cell.state] = column.steps.get(cell.state, 0) + end - first + 1
    return {facet: list(_runs([row[number] for number in sorted(row)])) for facet, row in counted.items()}


def _small_enough(cells: list[Cell], last: int) -> dict[str, list[Column]]:
    columns = _COLUMNS
    while True:
        rows = merged(cells, last, columns)
        if columns <= _FEWEST_COLUMNS or sum(map(len, rows.values())) <= _PARTS:
            return rows
        columns //= 2


def _pieces(cell: Cell, every: int) -> Iterator[tuple[int, int, int]]:
    for number in range((cell.first - 1) // every, (cell.last - 1) // every + 1):
        yield number, max(cell.first, number * every + 1), min(cell.last, (number + 1) * every)


def _runs(columns: list[Column]) -> Iterator[Column]:
    run: Column | None = None
    for column in columns:
        if run is None or run.state != column.state or run.last + 1 != column.first:
            if run is not None:
                yield run
            run = column
            continue
        run.last = column.last
        for state, steps in column.steps.items():
            run.steps[state] = run.steps.get(state, 0) + steps
    if run is not None:
        yield run


def _row(facet: str, runs: list[Column], axis: Axis, top: float) -> str:
    label = svg.text(wording.printable(facet), x=-10, y=top + 13, class_="label", text_anchor="end")
    return label + "".join(_run(run, axis, top) for run in runs) + "".join(_flag(run, axis, top) for run in runs)


def _run(run: Column, axis: Axis, top: float) -> str:
    start, width = axis.start(run.first), axis.end(run.last) - axis.start(run.first)
    title = svg.element("title", svg.escape(_tooltip(run)))
    return svg.element(
        "rect", title, class_=run.state or "", x=svg.percent(start), width=svg.percent(width), y=top, height=_CELL
    )


def _flag(run: Column, axis: Axis, top: float) -> str:
    """Mark the first difference by a shape too, which a thin column and a colour-blind reader need."""
    if run.state != "first":
        return ""
    middle = (axis.start(run.first) + axis.end(run.last)) / 2
    diamond = svg.element("path", d="M0 2l7 7-7 7-7-7z", class_="flag")
    return svg.element("svg", diamond, x=svg.percent(middle), y=top, class_="over")


def _tooltip(run: Column) -> str:
    steps = f"step {run.first}" if run.first == run.last else f"steps {run.first}–{run.last}"
    if len(run.steps) == 1:
        (state,) = run.steps
        return f"{steps}: {_IN_WORDS[state]}"
    return f"{steps}: " + ", ".join(f"{run.steps[s]:,} {_IN_WORDS[s]}" for s in _STRONGEST if s in run.steps)


def _in_words(verdict: Verdict, rows: dict[str, list[Column]]) -> str:
    told = f"{wording.count(len(rows), 'facet')} over the steps: "
    if verdict.divergence:
        return told + f"the first difference is at {wording.place(verdict.divergence)}."
    different = [facet for facet, runs in rows.items() if any(run.state in {"first", "different"} for run in runs)]
    return told + (f"differences in {', '.join(different)}." if different else "no difference.")
