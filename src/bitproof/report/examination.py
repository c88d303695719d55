"""What the doctor found, as text that a person reads: colour on a terminal, plain in a pipe."""

from collections.abc import Sequence

from rich.console import Console

from bitproof.doctor.catalogue import CODES, Code
from bitproof.doctor.examine import Examination, NotLookedFor
from bitproof.doctor.hazard import Hazard
from bitproof.doctor.settings import worth_a_word
from bitproof.report import wording
from bitproof.report.page import Page

_HEADLINES = {
    "no-steps": "COULD NOT EXAMINE: no optimizer step was seen",
    "failed": "COULD NOT EXAMINE to the end: the command failed",
    "timed-out": "COULD NOT EXAMINE to the end: the command timed out",
}


def render(found: Examination, console: Console, *, verbose: bool = False) -> None:
    """Print an examination.

    Args:
        found: what to print. Its text is printed as it is: no markup, no terminal codes.
        console: where to.
        verbose: every setting of the environment too.
    """
    page = Page(console)
    _headline(found, page)
    if found.message:
        page.prose(wording.printable(found.message), indent=2)
    for hazard in found.hazards:
        page.gap()
        _hazard(hazard, page)
    _looked_for(found, page)
    _environment(found, page, verbose=verbose)
    if found.output:
        page.gap()
        page.line("The last output of the command:", indent=2)
        for line in found.output:
            page.line(("│ ", "dim"), wording.printable(line), indent=4)


def render_list(codes: Sequence[Code], console: Console) -> None:
    """Print what hazards there are."""
    page = Page(console)
    for code in codes:
        page.line((code.code, "bold"))
        for label, text in (("means", code.meaning), ("evidence", code.evidence), ("remedy", code.remedy)):
            page.prose((f"{label}: ", "dim"), text, indent=2, hanging=2)
        if code.fact:
            page.line(("shown by: ", "dim"), f"bitproof facts {code.fact}", indent=2)


def _headline(found: Examination, page: Page) -> None:
    over = f" in {wording.count(found.steps, 'step')}" if found.steps else ""
    if found.reason is not None:
        page.prose((f"? {_HEADLINES[found.reason]}", "bold yellow"), hanging=2)
    elif found.hazards:
        number = len(found.hazards)
        page.prose((f"! {number} HAZARD{'S' if number > 1 else ''}{over}", "bold red"), hanging=2)
    else:
        page.prose((f"✓ NO HAZARD{over}", "bold green"), hanging=2)


def _hazard(hazard: Hazard, page: Page) -> None:
    where = f" ({wording.printable(hazard.where)})" if hazard.where else ""
    page.prose(
        "! ", (hazard.code, "bold"), (where, "cyan"), f": {wording.printable(hazard.summary)}", indent=2, hanging=2
    )
    page.prose(("What to do: ", "bold"), hazard.remedy, indent=4, hanging=2)
    if hazard.fact:
        page.line(("see: ", "dim"), f"bitproof facts {hazard.fact}", indent=4)


def _looked_for(found: Examination, page: Page) -> None:
    if found.steps is None or not found.steps:
        return
    missing = {entry.code for entry in found.not_looked_for}
    seen = {hazard.code for hazard in found.hazards}
    quiet = [code.code for code in CODES if code.code not in missing | seen]
    page.gap()
    page.prose((f"Looked for and not found: {', '.join(quiet)}", "dim"), indent=2, hanging=2)
    reasons = [f"{', '.join(entries)} ({why})" for why, entries in _by_reason(found.not_looked_for).items()]
    if reasons:
        page.prose((f"Not looked for: {'; '.join(reasons)}", "dim"), indent=2, hanging=2)


def _by_reason(missing: Sequence[NotLookedFor]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for entry in missing:
        found.setdefault(entry.why, []).append(entry.code)
    return found


def _environment(found: Examination, page: Page, *, verbose: bool) -> None:
    page.gap()
    page.line("What the bits depend on here:", indent=2)
    rows = [
        [(s.key, ""), (wording.printable(s.value), "bold"), (s.matter, "dim")] for s in worth_a_word(found.environment)
    ]
    page.table(("setting", "value", "what hangs on it"), rows, indent=4)
    if verbose:
        for key, value in sorted(found.environment.items()):
            page.line(f"{wording.printable(key)}: {wording.value(value, whole=True)}", indent=4)
