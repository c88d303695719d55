"""A verdict as text that a person reads in ten seconds: colour on a terminal, plain in a pipe."""

from collections.abc import Sequence

from rich.console import Console

from bitproof.compare.verdict import Cause, Verdict, worst
from bitproof.report import wording
from bitproof.report.page import Page

_EVIDENCE_SHOWN = 3
_ENVIRONMENT_SHOWN = 6
_TRIALS_SHOWN = 12
_LOOKS = {"identical": ("✓", "bold green"), "could-not-judge": ("?", "bold yellow")}
_FINDING = ("✗", "bold red")


def render(verdict: Verdict, console: Console, *, verbose: bool = False) -> None:
    """Print a verdict.

    Args:
        verdict: what to print. Its text is printed as it is: no markup, no terminal codes.
        console: where to. Prose is wrapped on a terminal only; a path is never broken.
        verbose: every cause in full, all evidence, the whole environment difference.
    """
    page = Page(console)
    if verdict.trials:
        _trials(verdict, page, verbose=verbose)
        return
    _headline(verdict, page)
    _body(verdict, page, verbose=verbose)


def _headline(verdict: Verdict, page: Page) -> None:
    symbol, style = _LOOKS.get(verdict.verdict, _FINDING)
    page.prose((f"{symbol} {wording.headline(verdict)}", style), hanging=2)


def _trials(verdict: Verdict, page: Page, *, verbose: bool) -> None:
    found = worst(verdict.trials)
    number = verdict.trials.index(found) + 1
    _headline(found, page)
    page.prose(wording.trials_counted(verdict.trials), indent=2)
    page.gap()
    _trials_table(verdict.trials, page, verbose=verbose)
    page.gap()
    told = "" if len(verdict.trials) == 1 else "The worst: " if found.verdict != "identical" else "The first: "
    page.prose(told + wording.fault(found, number), indent=2)
    _body(found, page, verbose=verbose)


def _trials_table(trials: Sequence[Verdict], page: Page, *, verbose: bool) -> None:
    numbered = list(enumerate(trials, 1))
    findings = sum(trial.verdict != "identical" for trial in trials)
    room = len(trials) if verbose else max(_TRIALS_SHOWN - findings, 0)
    shown = []
    for number, trial in numbered:
        if trial.verdict == "identical":
            room -= 1
        if trial.verdict != "identical" or room >= 0:
            shown.append(_trial_row(trial, number))
    page.table(("fault", "verdict", "where", "first cause"), shown, indent=2)
    if len(shown) < len(trials):
        page.line((f"and {len(trials) - len(shown)} more, identical", "dim"), indent=2)


def _trial_row(trial: Verdict, number: int) -> list[tuple[str, str]]:
    symbol, style = _LOOKS.get(trial.verdict, _FINDING)
    return [
        (wording.fault(trial, number), ""),
        (f"{symbol} {wording.spoken(trial.verdict)}", style.removeprefix("bold ")),
        (wording.place(trial.divergence) if trial.divergence else "", ""),
        (wording.printable(trial.causes[0].code) if trial.causes else "", ""),
    ]


def _body(verdict: Verdict, page: Page, *, verbose: bool) -> None:
    sentence = wording.compared(verdict)
    if sentence:
        page.prose(sentence, indent=2)
    if verdict.message:
        _message(verdict.message, page)
    if verdict.divergence and verdict.verdict not in {"diverged", "not-reproducible"}:
        page.prose(f"First difference: {wording.place(verdict.divergence)}", indent=2, hanging=2)
    _causes(verdict.causes, page, verbose=verbose)
    _asides(verdict, page)
    _environment(verdict, page, verbose=verbose)
    _output(verdict, page)
    _paths(verdict, page, verbose=verbose)


def _message(message: str, page: Page) -> None:
    for line in message.splitlines():
        page.prose(wording.printable(line), indent=2)


def _causes(causes: Sequence[Cause], page: Page, *, verbose: bool) -> None:
    for number, cause in enumerate(causes):
        if number == 0 or verbose:
            page.gap()
            _cause_in_full(cause, page, verbose=verbose)
        else:
            if number == 1:
                page.gap()
            page.prose("Also ", *_cause_in_short(cause), indent=2, hanging=2)


def _cause_in_short(cause: Cause) -> list[str | tuple[str, str]]:
    code, summary = wording.printable(cause.code), wording.printable(cause.summary)
    return [(code, "bold"), (f" ({cause.confidence})", "dim"), f": {summary}"]


def _cause_in_full(cause: Cause, page: Page, *, verbose: bool) -> None:
    page.prose(*_cause_in_short(cause), indent=2, hanging=2)
    shown = cause.evidence if verbose else cause.evidence[:_EVIDENCE_SHOWN]
    for evidence in shown:
        page.prose("· ", wording.printable(evidence), indent=4, hanging=2)
    if len(shown) < len(cause.evidence):
        page.line((f"· and {len(cause.evidence) - len(shown)} more", "dim"), indent=4)
    if cause.where:
        page.line("at ", (wording.source_line(cause.where), "cyan"), indent=4)
    if cause.remedy:
        page.prose(("What to do: ", "bold"), wording.printable(cause.remedy), indent=4, hanging=2)


def _asides(verdict: Verdict, page: Page) -> None:
    if verdict.latent or verdict.unseen:
        page.gap()
    for latent in verdict.latent:
        code, summary = wording.printable(latent.code), wording.printable(latent.summary)
        page.prose((f"Latent {code}: {summary}", "dim"), indent=2, hanging=2)
    if verdict.unseen:
        page.prose(f"Not observed: {'; '.join(map(wording.printable, verdict.unseen))}", indent=2, hanging=2)


def _environment(verdict: Verdict, page: Page, *, verbose: bool) -> None:
    if not verdict.environment:
        return
    page.gap()
    page.line(f"The environment differs (reference → {wording.other_name(verdict)}):", indent=2)
    shown = verdict.environment if verbose else verdict.environment[:_ENVIRONMENT_SHOWN]
    for found in shown:
        reference, other = wording.value(found.reference, whole=verbose), wording.value(found.other, whole=verbose)
        page.line(f"{wording.printable(found.key)}: {reference} → {other}", indent=4)
    if len(shown) < len(verdict.environment):
        page.line((f"and {len(verdict.environment) - len(shown)} more", "dim"), indent=4)


def _output(verdict: Verdict, page: Page) -> None:
    if not verdict.output:
        return
    page.gap()
    page.line(f"The last output of {wording.failed_leg(verdict)}:", indent=2)
    for line in wording.output_lines(verdict):
        page.line(("│ ", "dim"), line, indent=4)


def _paths(verdict: Verdict, page: Page, *, verbose: bool) -> None:
    paths = wording.trail_paths(verdict)
    if not paths and not (verbose and verdict.command):
        return
    page.gap()
    if verbose and verdict.command:
        page.line(("command      ", "dim"), (wording.command(verdict), "dim"), indent=2)
    for leg, path in paths:
        page.line((f"{leg:<11}  {path}", "dim"), indent=2)
