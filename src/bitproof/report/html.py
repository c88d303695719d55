"""A verdict as one self-contained page: nothing is fetched, nothing runs, and it opens from a disk."""

import contextlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from bitproof.__about__ import __version__
from bitproof.compare.verdict import Cause, Latent, Verdict, to_json, worst
from bitproof.errors import MissingExtraError, UsageError
from bitproof.report import axis, curves, grid, timeline, wording

_TEMPLATES = Path(__file__).parent / "templates"
_TONES = {"identical": ("good", "✓"), "could-not-judge": ("unclear", "?")}
_FINDING = ("bad", "✗")


@dataclass(frozen=True)
class Drawing:
    """A picture and the words around it."""

    key: str
    title: str
    svg: str
    caption: str = ""


@dataclass(frozen=True)
class Section:
    """One verdict, ready to be laid out: every string is plain text, except a drawing's SVG."""

    anchor: str
    name: str
    verdict: str
    tone: str
    symbol: str
    headline: str
    compared: str | None
    message: list[str]
    difference: str | None
    figures: list[tuple[str, str]]
    drawings: list[Drawing]
    curves: list[tuple[str, str]]
    """For the legend: which kinds of legs have a loss curve, and what they are called."""
    marks: list[tuple[str, str]]
    """For the legend: which lines cross the pictures, and what they mean."""
    causes: list[Cause]
    latent: list[Latent]
    environment: list[tuple[str, str, str]]
    other: str
    unseen: list[str]
    failed_leg: str
    output: list[str]
    trails: list[tuple[str, str]]
    place: str
    first_cause: str


def write(verdict: Verdict, path: Path) -> None:
    """Write the page, all of it or nothing.

    Args:
        verdict: what to show; with trials, each gets a section.
        path: the file, replaced if it is there.

    Raises:
        MissingExtraError: Jinja2 is not installed.
        UsageError: the file cannot be written there.
    """
    _replace(path, page(verdict))


def page(verdict: Verdict) -> str:
    """Return the page as text.

    Raises:
        MissingExtraError: Jinja2 is not installed.
    """
    jinja2 = _jinja2()
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    trials = [section(trial, number) for number, trial in enumerate(verdict.trials, 1)]
    found = worst(verdict.trials) if verdict.trials else verdict
    text: str = environment.get_template("page.html.j2").render(
        top=section(found, verdict.trials.index(found) + 1 if trials else 0),
        trials=trials,
        counted=wording.trials_counted(verdict.trials) if trials else "",
        command=wording.command(verdict) or wording.command(found),
        json=_json_for_script(verdict),
        version=__version__,
    )
    return text


def section(verdict: Verdict, number: int) -> Section:
    """Turn one verdict into what the template lays out."""
    tone, symbol = _TONES.get(verdict.verdict, _FINDING)
    says_where = verdict.verdict in {"diverged", "not-reproducible"}
    place = wording.place(verdict.divergence) if verdict.divergence else ""
    return Section(
        anchor=f"trial-{number}" if number else "verdict",
        name=wording.fault(verdict, number),
        verdict=wording.spoken(verdict.verdict),
        tone=tone,
        symbol=symbol,
        headline=wording.headline(verdict),
        compared=wording.compared(verdict),
        message=[wording.printable(line) for line in (verdict.message or "").splitlines()],
        difference=place if place and not says_where else None,
        figures=_figures(verdict),
        drawings=_drawings(verdict),
        curves=_curves(verdict),
        marks=_marks(verdict),
        causes=[_plain_cause(cause) for cause in verdict.causes],
        latent=[Latent(wording.printable(found.code), wording.printable(found.summary)) for found in verdict.latent],
        environment=[
            (
                wording.printable(found.key),
                wording.value(found.reference, whole=True),
                wording.value(found.other, whole=True),
            )
            for found in verdict.environment
        ],
        other=wording.other_name(verdict),
        unseen=[wording.printable(name) for name in verdict.unseen],
        failed_leg=wording.failed_leg(verdict),
        output=wording.output_lines(verdict),
        trails=wording.trail_paths(verdict),
        place=place,
        first_cause=wording.printable(verdict.causes[0].code) if verdict.causes else "",
    )


def _plain_cause(cause: Cause) -> Cause:
    return Cause(
        code=wording.printable(cause.code),
        confidence=cause.confidence,
        summary=wording.printable(cause.summary),
        evidence=[wording.printable(line) for line in cause.evidence],
        remedy=wording.printable(cause.remedy),
        where=wording.source_line(cause.where) if cause.where else None,
    )


def _figures(verdict: Verdict) -> list[tuple[str, str]]:
    steps = verdict.steps
    if not steps.compared:
        return []
    figures = [("reference steps", f"{steps.reference:,}"), ("compared", f"{steps.compared:,}")]
    figures.append(("identical", f"{steps.identical:,}"))
    if verdict.seams:
        figures.append(("redone", f"{sum(seam.redone for seam in verdict.seams):,}"))
    return figures


def _drawings(verdict: Verdict) -> list[Drawing]:
    steps = axis.of_verdict(verdict)
    if steps is None:
        return []
    drawn = [
        ("legs", "Legs", timeline.draw(verdict, steps), ""),
        ("facets", "Facets at each step", grid.draw(verdict, steps), _about_facets(verdict)),
        ("losses", "Loss", curves.draw_losses(verdict, steps), _left_out(verdict)),
        (
            "differences",
            "Loss, |difference| from the reference",
            curves.draw_differences(verdict, steps),
            curves.summary(verdict) or "",
        ),
    ]
    return [Drawing(key, title, svg, caption) for key, title, svg, caption in drawn if svg is not None]


def _curves(verdict: Verdict) -> list[tuple[str, str]]:
    kinds = dict.fromkeys(curve.leg for curve in verdict.picture.curves) if verdict.picture else {}
    return [(kind, wording.leg_name(kind, verdict)) for kind in kinds]


def _marks(verdict: Verdict) -> list[tuple[str, str]]:
    marks = []
    if verdict.seams:
        marks.append(("kill", "killed"))
    if any(seam.resumed_at is not None for seam in verdict.seams):
        marks.append(("seam", "seam"))
    if verdict.divergence is not None:
        marks.append(("parted", "first difference"))
    return marks


def _about_facets(verdict: Verdict) -> str:
    cells = verdict.picture.cells if verdict.picture else []
    first = min((cell.first for cell in cells), default=1)
    hidden = ", ".join(map(wording.printable, grid.unseen_facets(verdict)))
    said = [f"Compared from step {first} on, after the seam."] if first > 1 and verdict.seams else []
    said += [f"Not part of this run, or not observed: {hidden}."] if hidden else []
    return " ".join(said)


def _left_out(verdict: Verdict) -> str:
    number = curves.unplotted(verdict)
    return f"Infinite or not a number, and so not drawn: {wording.count(number, 'loss value')}." if number else ""


def _json_for_script(verdict: Verdict) -> str:
    """Return the JSON answer so that no text in it can end a script element or begin a comment."""
    text = json.dumps(json.loads(to_json(verdict)), indent=2)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _jinja2() -> ModuleType:
    try:
        import jinja2  # noqa: PLC0415  # an extra, needed for this page alone
    except ImportError:
        raise MissingExtraError("Jinja2", "report", "--html") from None
    return jinja2


def _replace(path: Path, text: str) -> None:
    if path.is_dir():
        raise UsageError(f"--html {path}: that is a folder. Give the path of a file, such as {path / 'report.html'}.")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        temporary.replace(path)
    except FileNotFoundError:
        raise UsageError(
            f"--html {path}: the folder {path.parent} does not exist. Make it, or give another path."
        ) from None
    except OSError as error:
        raise UsageError(
            f"--html {path}: the page could not be written ({error.strerror}). Give another path."
        ) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
