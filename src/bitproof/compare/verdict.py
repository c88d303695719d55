"""The answer, as data: what ``prove`` and ``diff`` print with ``--json``. Fields are only ever added."""

from typing import Any, Literal

import msgspec

from bitproof.environment import Difference

FORMAT = 1

VerdictName = Literal["identical", "diverged", "not-reproducible", "not-resumed", "resume-failed", "could-not-judge"]
WORST_FIRST: tuple[VerdictName, ...] = (
    "could-not-judge",
    "resume-failed",
    "not-resumed",
    "not-reproducible",
    "diverged",
    "identical",
)
Reason = Literal["reference-failed", "interrupted-failed", "fault-not-reached", "timed-out", "no-steps", "incomparable"]
Confidence = Literal["certain", "likely", "possible"]


class Moment(msgspec.Struct, frozen=True, order=True):
    """A place in the whole run.

    With ``micro`` 0 it is right after ``step``; otherwise inside ``step``, after that many of its backward passes.
    """

    step: int
    micro: int = 0


class Steps(msgspec.Struct, frozen=True):
    """How many steps the reference took, how many were compared after the seam, and how many of those were equal."""

    reference: int
    compared: int
    identical: int


class Seam(msgspec.Struct, frozen=True):
    """Where a leg was cut off and where the next one joined the reference."""

    killed_after: Moment | None
    """None where the leg that was cut off is not at hand."""
    resumed_at: Moment | None
    """None if the resumed leg's first state is none of the reference's."""
    redone: int


class Divergence(msgspec.Struct, frozen=True):
    """The first step and the first facet, in causal order, that differ."""

    step: int
    rank: int
    facet: str
    names: list[str]
    """The first few that differ."""
    differing: int
    of: int
    micro: int = 0


class Cause(msgspec.Struct, frozen=True):
    """Why: a code, how sure, the evidence, the remedy."""

    code: str
    confidence: Confidence
    summary: str
    evidence: list[str]
    remedy: str
    where: str | None = None


class Latent(msgspec.Struct, frozen=True):
    """Something that differs and that nothing draws from."""

    code: str
    summary: str


class Trails(msgspec.Struct, frozen=True):
    """Where the trails lie."""

    reference: str
    interrupted: list[str] = []
    resumed: list[str] = []


class Cell(msgspec.Struct, frozen=True):
    """One facet over a run of consecutive steps, for the picture of facets × steps."""

    facet: str
    first: int
    last: int
    state: Literal["same", "different", "first", "unseen"]


class Curve(msgspec.Struct, frozen=True):
    """A leg's loss, a point a step of the whole run."""

    leg: Literal["reference", "interrupted", "resumed"]
    steps: list[int]
    losses: list[float | None]


class LegSpan(msgspec.Struct, frozen=True):
    """The steps of the whole run that one leg took."""

    leg: Literal["reference", "interrupted", "resumed"]
    first: int
    last: int
    ending: Literal["ended", "killed", "stopped", "failed"]


class Picture(msgspec.Struct, frozen=True):
    """What the HTML page draws."""

    legs: list[LegSpan] = []
    cells: list[Cell] = []
    curves: list[Curve] = []


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The whole answer."""

    format: int = FORMAT
    verdict: VerdictName
    reason: Reason | None = None
    message: str | None = None
    """One sentence for ``could-not-judge`` and ``resume-failed``: what happened and what to do."""
    output: list[str] = []
    """The last lines of a leg that failed."""
    command: list[str] = []
    steps: Steps = Steps(0, 0, 0)
    seams: list[Seam] = []
    divergence: Divergence | None = None
    causes: list[Cause] = []
    latent: list[Latent] = []
    environment: list[Difference] = []
    unseen: list[str] = []
    """What could not be observed in any leg."""
    trails: Trails | None = None
    fault: str | None = None
    """For a trial: the fault, as on the command line."""
    trials: list["Verdict"] = []
    picture: Picture | None = None
    """Left out of the JSON."""


def to_json(verdict: Verdict) -> bytes:
    """Return the verdict as indented JSON, without the picture."""
    return msgspec.json.format(msgspec.json.encode(_public(verdict)), indent=2)


def _public(verdict: Verdict) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(verdict)
    found.pop("picture")
    found["trials"] = [_public(trial) for trial in verdict.trials]
    return found


def worst(verdicts: list[Verdict]) -> Verdict:
    """Return the worst of several verdicts, the first of equals."""
    return min(verdicts, key=lambda v: WORST_FIRST.index(v.verdict))


def exit_status(verdict: Verdict) -> int:
    """0 identical, 1 a finding, 3 could not judge."""
    return {"identical": 0, "could-not-judge": 3}.get(verdict.verdict, 1)
