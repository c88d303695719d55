"""Facts as text on a terminal."""

from collections import Counter

from bitproof.facts.fact import Fact, Outcome, Verdict
from bitproof.report.page import Page

_LOOKS: dict[Verdict, tuple[str, str, str, str]] = {
    "holds": ("✓", "bold green", "holds", "hold"),
    "does-not-hold": ("✗", "bold red", "does not hold", "do not hold"),
    "cannot-be-tried": ("?", "bold yellow", "cannot be tried here", "cannot be tried here"),
}
_INDENT = 6


def fact(fact: Fact, outcome: Outcome, page: Page, *, code: bool) -> None:
    """Print a fact and what became of it.

    Args:
        fact: which.
        outcome: what became of it.
        page: where to.
        code: with its code and its remedy.
    """
    mark, style, words, _ = _LOOKS[outcome.verdict]
    page.line((f"{mark} {fact.id:<{_INDENT - 2}}", style), (fact.title, "bold"), ": ", (words, style))
    page.prose(fact.statement, indent=_INDENT)
    page.prose(("seen: ", "dim"), outcome.seen, indent=_INDENT)
    if code:
        page.prose(("remedy: ", "dim"), fact.remedy, indent=_INDENT)
        for heading, text in (
            ("the code that ran", fact.snippet),
            ("and the remedy, from there on", fact.remedy_snippet),
        ):
            if text:
                page.gap()
                page.line((f"# {heading}:", "dim"))
                for line in text.rstrip().splitlines():  # without indent, so that it can be copied
                    page.line(line)
    page.gap()


def summary(verdicts: list[Verdict], page: Page) -> None:
    """Print how many facts hold."""
    found = Counter(verdicts)
    parts = [f"{count} {_LOOKS[verdict][2 if count == 1 else 3]}" for verdict in _LOOKS if (count := found[verdict])]
    page.line(f"{len(verdicts)} facts: ", ", ".join(parts))
    page.prose(("`bitproof facts ID` shows the code that ran and the remedy.", "dim"))
