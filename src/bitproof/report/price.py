"""The price of determinism as text: colour on a terminal, plain in a pipe."""

import statistics
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from bitproof.price.answer import Failure, Price, Speed
from bitproof.report.wording import count, printable, source_line

_SHORT = 2.0
"""Seconds below which a leg's figure depends on what else the machine does."""
_REASONS = {
    "command-failed": "the command failed",
    "no-steps": "no step could be timed",
    "timed-out": "a leg took too long",
}


def render(price: Price, console: Console) -> None:
    """Print a price; the text of others in it is printed as it is."""
    for line in _lines(price):
        console.print(line, soft_wrap=True, markup=False, highlight=False, emoji=False)


def _lines(price: Price) -> list[Text]:
    if price.reason is not None:
        found = [
            Text(f"no price: {_REASONS[price.reason]}", "bold yellow"),
            Text(f"  {printable(price.message or '')}"),
        ]
        return [*found, *(Text(f"    {printable(line)}", "dim") for line in price.output)]
    whole = next((s for s in price.settings if not s.part and s.ratio is not None), None)
    lines = [_headline(whole, price.rounds), Text()]
    lines += _table(price)
    failures = [(s.name, s.failure) for s in price.settings if s.failure is not None]
    lines += [Text(f"  {name} does not run: {_why(failure)}", "yellow") for name, failure in failures]
    return [*lines, Text(), *(Text(f"  {text}", "dim") for text in _notes(price))]


def _headline(whole: Speed | None, rounds: int) -> Text:
    if whole is None or whole.ratio is None:
        return Text("the command does not run deterministically", "bold yellow")
    if rounds == 1:
        return Text(f"{whole.name}: {whole.ratio:.3f} of the speed without (one round, so no spread)", "bold")
    told = f"{whole.ratio:.3f} of the speed without ({min(whole.ratios):.3f} to {max(whole.ratios):.3f} in {rounds} rounds)"
    if max(whole.ratios) >= 1:
        return Text(f"no cost shows: {told}", "bold")
    return Text(f"{whole.name} costs {1 - whole.ratio:.1%}: {told}", "bold")


def _table(price: Price) -> list[Text]:
    rows = [("", "steps a second", "with / without", "spread", "")]
    own = f"{_number(min(price.without))} to {_number(max(price.without))} a second" if len(price.without) > 1 else ""
    rows.append(("without", _figure(price.without), "", own, "the command as it is"))
    for s in price.settings:
        if s.ratio is not None:
            spread = f"{min(s.ratios):.3f} to {max(s.ratios):.3f}" if len(s.ratios) > 1 else ""
            rows.append((s.name, _figure(s.steps_per_second), f"{s.ratio:.3f}", spread, s.does))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    return [Text("  " + _row(row, widths).rstrip(), "dim" if number == 0 else "") for number, row in enumerate(rows)]


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    name, *figures, does = cells
    aligned = [cell.rjust(width) for cell, width in zip(figures, widths[1:4], strict=True)]
    return "  ".join([name.ljust(widths[0]), *aligned, does])


def _figure(figures: Sequence[float]) -> str:
    return _number(statistics.median(figures))


def _number(figure: float) -> str:
    return f"{figure:,.1f}" if figure >= 10 else f"{figure:.3g}"


def _why(failure: Failure) -> str:
    where = f" at {source_line(failure.where)}" if failure.where else ""
    if failure.operation is None:
        return printable(failure.summary)
    return f"{printable(failure.operation)} has no deterministic implementation{where}"


def _notes(price: Price) -> list[str]:
    told = price.machine
    on = ", ".join(str(told[key]) for key in ("device", "cpu") if told.get(key))
    threads = count(int(told.get("threads") or 1), "thread")
    notes = []
    if any(s.part for s in price.settings):
        slower = f"costs most: {price.costliest}"
        notes.append(slower if price.costliest else "no single setting was slower in every round")
    notes.append(
        f"{price.steps} steps a leg, after {price.warm_up} that warm up; {printable(on)}, {threads}, "
        f"PyTorch {told.get('torch')}"
    )
    if price.seconds is not None and price.seconds < _SHORT:
        notes.append(f"these steps took {price.seconds:.2g} s a leg, which is short: --steps N gives a steadier figure")
    notes.append("another machine, model or batch size has another price; what is also running here counts, too")
    return notes
