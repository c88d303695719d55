"""Verdicts of each kind, made by hand, as `prove` and `diff` would give them."""

import math
from collections.abc import Callable

import pytest

from bitproof.compare.verdict import (
    Cause,
    Cell,
    Curve,
    Divergence,
    Latent,
    LegSpan,
    Moment,
    Picture,
    Seam,
    Steps,
    Trails,
    Verdict,
)
from bitproof.environment import Difference

FACETS = ("weights", "buffers", "optimizer", "hyperparameters", "mode", "batch", "loss", "gradients")
COMMAND = ["python", "train.py", "--out", "{out}"]
TRAILS = Trails("/runs/a b/reference.trail", ["/runs/a b/interrupted.trail"], ["/runs/a b/resumed.trail"])


def loss(step: int) -> float:
    """Return the reference's loss."""
    return 2.3 * math.exp(-step / 30) + 0.1 * math.sin(step)


def legs(last: int, killed: int, resumed: int) -> list[LegSpan]:
    """Return the reference, an interrupted and a resumed leg."""
    return [
        LegSpan("reference", 1, last, "ended"),
        LegSpan("interrupted", 1, killed, "killed"),
        LegSpan("resumed", resumed + 1, last, "ended"),
    ]


def cells(first: int, last: int, parted: int | None = None) -> list[Cell]:
    """Return a grid in which the batch parts at a step, and the rest follows."""
    found = []
    for facet in FACETS:
        if facet == "buffers":
            found += [Cell(facet, first, last - 9, "unseen"), Cell(facet, last - 8, last, "same")]
        elif parted is None or facet in {"hyperparameters", "mode"}:
            found.append(Cell(facet, first, last, "same"))
        else:
            late = facet in {"weights", "optimizer"}
            start = parted + 1 if late else parted
            if start > first:
                found.append(Cell(facet, first, start - 1, "same"))
            if facet == "batch":
                found.append(Cell(facet, start, start, "first"))
                start += 1
            found.append(Cell(facet, start, last, "different"))
    return found


def picture(last: int, killed: int, resumed: int, parted: int | None = None) -> Picture:
    """Return what the page draws for a proof."""
    steps, before, after = range(1, last + 1), range(1, killed + 1), range(resumed + 1, last + 1)
    late = [loss(s) + (0.002 * math.log(s - parted + 2) * math.cos(s) if parted and s >= parted else 0) for s in after]
    curves = [
        Curve("reference", list(steps), [loss(s) for s in steps]),
        Curve("interrupted", list(before), [loss(s) for s in before]),
        Curve("resumed", list(after), late),
    ]
    return Picture(legs(last, killed, resumed), cells(resumed + 1, last, parted), curves)


DATA_RESTARTED = Cause(
    code="data-restarted",
    confidence="certain",
    summary="the resumed leg read the epoch from its start: its first batch is the reference's batch of step 1",
    evidence=[
        "the batch at step 21 equals the reference's batch at step 1 (32 of 32 samples, same order)",
        "the loader's iterator was started once in the resumed leg, and nothing was skipped",
        "no data position was loaded: checkpoint.pt holds model, optimizer, epoch",
        "the reference's next batch would have held samples 512, 84, 1033, …",
    ],
    remedy="save how many batches of the epoch were used, and skip as many after the resume; or use bitproof.Run.",
    where="train.py:41",
)
RESEEDED = Cause(
    "rng-reseeded",
    "likely",
    "torch's generator equals its state at step 0",
    ["it was seeded at train.py:12"],
    "restore it",
    "train.py:12",
)
NUMPY_LATENT = Latent("rng-not-restored", "numpy's generator differs, and nothing draws from it")


def identical() -> Verdict:
    """Return a proof that found nothing."""
    return Verdict(
        verdict="identical",
        command=COMMAND,
        steps=Steps(64, 44, 44),
        seams=[Seam(Moment(25), Moment(20), 5)],
        latent=[NUMPY_LATENT],
        trails=TRAILS,
        picture=picture(64, 25, 20),
    )


def diverged() -> Verdict:
    """Return a proof that found a loader started again."""
    return Verdict(
        verdict="diverged",
        command=COMMAND,
        steps=Steps(64, 44, 0),
        seams=[Seam(Moment(25), Moment(20), 5)],
        divergence=Divergence(21, 0, "batch", ["input_ids"], 1, 1),
        causes=[DATA_RESTARTED, RESEEDED],
        latent=[NUMPY_LATENT],
        environment=[Difference("torch.threads", 2, 1), Difference("env.ATEN_CPU_CAPABILITY", None, "default")],
        unseen=["the compiled step's intermediate values"],
        trails=TRAILS,
        picture=picture(64, 25, 20, 21),
    )


def two_runs() -> Verdict:
    """Return a diff of two runs that part at step 21."""
    steps = range(1, 65)
    other = [loss(s) + (1e-7 * 1.3 ** (s - 21) if s >= 21 else 0) for s in steps]
    return Verdict(
        verdict="diverged",
        steps=Steps(64, 64, 20),
        divergence=Divergence(21, 0, "gradients", ["Net/fc1.weight", "Net/fc1.bias", "Net/fc2.weight"], 4, 12),
        causes=[
            Cause(
                "environment-changed", "likely", "torch.threads is 2 in one and 1 in the other", [], "use equal threads"
            )
        ],
        environment=[Difference("torch.threads", 2, 1)],
        trails=Trails("a.trail", [], ["b.trail"]),
        picture=Picture(
            [LegSpan("reference", 1, 64, "ended"), LegSpan("resumed", 1, 64, "ended")],
            cells(1, 64, 21),
            [Curve("reference", list(steps), [loss(s) for s in steps]), Curve("resumed", list(steps), other)],
        ),
    )


def not_resumed() -> Verdict:
    """Return a proof whose resumed leg began at the start."""
    cause = Cause(
        "not-resumed",
        "certain",
        "the resumed leg started from the reference's start",
        ["checkpoint.pt was written after step 20, and never opened"],
        "read the newest checkpoint when the script starts",
    )
    return Verdict(
        verdict="not-resumed",
        steps=Steps(64, 64, 64),
        seams=[Seam(Moment(25), Moment(0), 25)],
        causes=[cause],
        trails=TRAILS,
        picture=picture(64, 25, 0),
    )


def not_reproducible() -> Verdict:
    """Return a proof whose interrupted leg differed before the kill."""
    return Verdict(
        verdict="not-reproducible",
        steps=Steps(64, 25, 2),
        divergence=Divergence(3, 0, "gradients", ["Net/embedding.weight"], 1, 12),
        causes=[
            Cause(
                "nondeterministic-op",
                "possible",
                "same inputs, other gradients",
                ["the batch and the weights of step 3 are equal"],
                "torch.use_deterministic_algorithms(True)",
            )
        ],
        trails=Trails("/runs/reference.trail", ["/runs/interrupted.trail"]),
        picture=Picture(legs(64, 25, 20)[:2], cells(1, 25, 3), []),
    )


def resume_failed() -> Verdict:
    """Return a proof whose resumed leg crashed."""
    return Verdict(
        verdict="resume-failed",
        message="The resumed leg ended with status 1 before its first step. Run the command by hand in the folder named below.",
        output=[
            "Traceback (most recent call last):",
            '  File "train.py", line 9, in <module>',
            "\x1b[31mKeyError\x1b[0m: 'optimizer'",
        ],
        steps=Steps(64, 0, 0),
        seams=[Seam(Moment(25), None, 0)],
        fault="25",
        trails=Trails("/runs/reference.trail", ["/runs/interrupted.trail"]),
        picture=Picture(legs(64, 25, 20)[:2], [], []),
    )


def could_not_judge() -> Verdict:
    """Return a proof whose reference crashed."""
    return Verdict(
        verdict="could-not-judge",
        reason="reference-failed",
        message="The reference ended with status 1 after step 3.",
        output=["RuntimeError: out of memory"],
    )


def four_trials() -> Verdict:
    """Return a proof with four faults."""
    faults = [
        ("13", identical()),
        ("25", diverged()),
        ("13.2", identical()),
        ("during-save:2", not_resumed()),
    ]
    trials = [replaced(verdict, fault=fault) for fault, verdict in faults]
    return replaced(trials[3], trials=trials, fault=None)


def replaced(verdict: Verdict, **changes: object) -> Verdict:
    """Return a verdict with some fields changed."""
    fields = {name: getattr(verdict, name) for name in verdict.__struct_fields__}
    return Verdict(**(fields | changes))


KINDS: dict[str, Callable[[], Verdict]] = {
    "identical": identical,
    "diverged": diverged,
    "two-runs": two_runs,
    "not-resumed": not_resumed,
    "not-reproducible": not_reproducible,
    "resume-failed": resume_failed,
    "could-not-judge": could_not_judge,
    "four-trials": four_trials,
}


@pytest.fixture
def make() -> Callable[..., Verdict]:
    """Return a maker: ``make("diverged", fault="25")`` gives that kind with a field changed."""
    return lambda kind, **changes: replaced(KINDS[kind](), **changes)


@pytest.fixture(params=list(KINDS))
def any_verdict(request: pytest.FixtureRequest) -> Verdict:
    """Return each kind of verdict in turn."""
    return KINDS[request.param]()


@pytest.fixture
def long_picture() -> Callable[[str], Picture]:
    """Return a maker of pictures of 20,000 steps: ``long`` parts once, ``noisy`` changes at every step."""

    def drawn(kind: str) -> Picture:
        found = picture(20_000, 9321, 9000, 9001)
        if kind == "long":
            return found
        noisy = [
            Cell(facet, step, step, "different" if step * 7919 % 97 < 2 else "same")
            for facet in FACETS
            for step in range(1, 20_001)
        ]
        return Picture(found.legs, noisy, found.curves)

    return drawn
