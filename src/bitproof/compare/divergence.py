"""The first step and the first facet, in causal order, that differ."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bitproof.compare.distance import describe
from bitproof.compare.timeline import Placed, Side
from bitproof.compare.verdict import Divergence
from bitproof.errors import IncomparableError
from bitproof.trail.records import RESULT_FACETS, STATE_FACETS, StepHead, Tensors

_NAMELESS = re.compile(r"/group\d+\.\d+$")
"""A parameter that an optimizer has and no known module holds."""
_MOST_NAMES = 5
_NOT_STATE = re.compile(
    r"(^|[._\-])(rng|random|generator|time|timestamp|walltime|wall_?clock|clock|elapsed|duration|seconds|date|datetime"
    r"|(saved|created|started|updated|written)_(at|on)|path|dir|folder|host|hostname|pid|uuid|run_?id|job_?id"
    r"|restarts?|resumes?|attempts?|(num|n)_(restarts|resumes|attempts))([._\-]|\d|$)"
    r"|_(time|secs?|seconds|ms|per_sec|per_second|path|dir)$|rng_state|(samples|steps|tokens)_per_",
    re.IGNORECASE,
)
"""Names of saved values that no resume brings back: clocks, places, and generators, which have a facet of their own."""
_FLOATING = ("float", "bfloat", "complex")


@dataclass(frozen=True)
class Delta:
    """How one facet differs at one step."""

    facet: str
    names: tuple[str, ...]
    of: int
    micro: int = 0
    lines: tuple[str, ...] = ()
    """How far some of them are apart, where the step's detail will not tell."""


@dataclass(frozen=True)
class Comparison:
    """What came of walking two sides step by step."""

    compared: int
    identical: int
    divergence: Divergence | None
    unseen: tuple[str, ...]
    saved: Divergence | None = None
    """The first difference in what is saved. It is the divergence if training is equal to its end; before a
    divergence in training it is evidence of what led there."""
    saved_names: tuple[str, ...] = ()
    """All entries that differ there."""
    saved_lines: tuple[str, ...] = ()
    """How far some of them are apart."""


def walk(
    reference: Side,
    leg: Placed,
    *,
    upto: int | None = None,
    noise: frozenset[str] = frozenset(),
    fresh: bool = False,
) -> Comparison:
    """Compare a placed leg with the reference to the end.

    Args:
        reference: the one side.
        leg: the other, on the reference's clock.
        upto: compare no step beyond this one, and not the ends.
        noise: names in saved trees that are known to differ from run to run.
        fresh: the leg started as the reference did, so there is nothing that it could have failed to restore: of what
            is saved only floating-point tensors count, as a clock or a counter of processes may differ.

    Raises:
        IncomparableError: they train different models.
    """
    _check_same_model(reference, leg, strict=fresh)
    last = min(reference.last, leg.last) if upto is None else min(reference.last, leg.last, upto)
    compared = identical = 0
    first: Divergence | None = None
    saved: Divergence | None = None
    saved_names: tuple[str, ...] = ()
    saved_lines: tuple[str, ...] = ()
    for step in range(leg.first, last + 1):
        compared += 1
        delta = next(step_deltas(reference, leg, step), None) if first is None else None
        if delta is not None:
            first = _divergence(step, leg, delta)
        identical += first is None
        if first is None and saved is None:
            kept = next(saved_deltas(reference, leg, step, noise, fresh=fresh), None)
            if kept is not None:
                saved, saved_names, saved_lines = _divergence(step, leg, kept), kept.names, kept.lines
    if first is None and upto is None:
        first = _end(reference, leg)
    if first is None and saved is not None:
        first, identical = saved, saved.step - leg.first
    return Comparison(compared, identical, first, _unseen(reference, leg), saved, saved_names, saved_lines)


def step_deltas(reference: Side, leg: Placed, step: int) -> Iterator[Delta]:
    """Yield how each facet of a step differs, in causal order; what is saved after it is not looked at."""
    one, other = reference.head(step), leg.head(step)
    if one is None or other is None:
        return
    for facet in RESULT_FACETS:
        if facet in {"batch", "loss"}:
            yield from _work_deltas(reference, leg, step, facet, one, other)
        elif facet == "buffers" and step == leg.first and leg.micro:
            yield from _buffers_in_window(reference, leg, step, one, other)
        elif facet in one.roots and facet in other.roots and one.roots[facet] != other.roots[facet]:
            delta = _facet_delta(reference, leg, step, facet)
            if delta is not None:
                yield delta


def differing_facets(reference: Side, leg: Placed, step: int) -> set[str]:
    """Return the facets of a step that differ, judged by what is kept of each step for ever."""
    one, other = reference.head(step), leg.head(step)
    if one is None or other is None:
        return set()
    skip = leg.micro if step == leg.first else 0
    found = {f for f in RESULT_FACETS if f in one.roots and f in other.roots and one.roots[f] != other.roots[f]}
    if "mode" in found and _facet_delta(reference, leg, step, "mode") is None:
        found.remove("mode")
    if skip:
        found -= {"buffers", "batch", "loss"}
        found |= {"buffers"} if one.micros[skip].buffers != other.roots.get("buffers") else set()
        pairs = list(zip(one.micros[skip:], other.micros, strict=False))
        found |= {"batch"} if any(a.batch != b.batch for a, b in pairs) else set()
        found |= {"loss"} if any(a.loss != b.loss for a, b in pairs) else set()
    return found


def differing(one: Tensors, other: Tensors) -> tuple[str, ...]:
    """Return the names whose content, dtype or shape differ, or that only one side has."""
    left, right = one.by_name(), other.by_name()
    return tuple(
        name
        for name in sorted(left.keys() | right.keys())
        if name not in left or name not in right or left[name][:2] != right[name][:2]
    )


def shown(names: tuple[str, ...] | list[str]) -> list[str]:
    """Return the first few names without the model's name before them."""
    return [name.rsplit("/", 1)[-1] for name in list(names)[:_MOST_NAMES]]


def apart(one: Tensors, other: Tensors, *, names: Sequence[str] | None = None, most: int) -> list[str]:
    """Say of the first few names that differ how far they are apart.

    Args:
        one: the reference's.
        other: the other side's.
        names: those that differ, if that is known.
        most: how many lines.
    """
    left, right = one.by_name(), other.by_name()
    found: list[str] = []
    for name in differing(one, other) if names is None else names:
        if len(found) == most:
            break
        short = shown([name])[0]
        if name not in left or name not in right:
            missing = "is there in the reference only" if name in left else "is not there in the reference"
            found.append(f"{short} {missing}")
        elif left[name][0] != right[name][0]:
            found.append(f"{short} is {right[name][0]} where the reference has {left[name][0]}")
        else:
            far = describe(left[name][0], left[name][2], right[name][2])
            found += [f"{short}: {far}"] if far else []
    return found


def saved_noise(reference: Side, leg: Placed) -> frozenset[str]:
    """Return names in saved trees that differ although the legs should be equal: times, paths and the like."""
    names: set[str] = set()
    for one, other in _paired_saves(reference, leg):
        names.update(_differing_leaves(one, other))
    return frozenset(names)


def _facet_delta(reference: Side, leg: Placed, step: int, facet: str) -> Delta | None:
    one, other = reference.detail(step), leg.detail(step)
    if one is None or other is None or facet not in one.facets or facet not in other.facets:
        return Delta(facet, (), 0)
    left, right = one.facets[facet], other.facets[facet]
    names = differing(left, right)
    if facet == "mode":
        # A module that only one side called, such as a metric, has no mode on the other.
        names = tuple(name for name in names if name in left.names and name in right.names)
    if facet in {"weights", "buffers"}:
        # Nor has a model that only one side called, for a look at its results, any state on the other.
        common = _owners(left) & _owners(right)
        names = tuple(name for name in names if _owner(name) in common or _NAMELESS.search(name)) if common else names
    return Delta(facet, names, len(set(left.names) | set(right.names))) if names else None


def _owner(name: str) -> str:
    return name.split("/", 1)[0]


def _owners(tensors: Tensors) -> set[str]:
    return {_owner(name) for name in tensors.names}


def _buffers_in_window(reference: Side, leg: Placed, step: int, one: StepHead, other: StepHead) -> Iterator[Delta]:
    """Compare buffers where a leg joins inside a step: earlier passes of the step have moved them already."""
    if one.micros[leg.micro].buffers == other.roots.get("buffers"):
        return
    details = reference.detail(step), leg.detail(step)
    if details[0] is None or details[1] is None or (expected := details[0].buffers[leg.micro]) is None:
        yield Delta("buffers", (), 0)
    elif names := differing(expected, details[1].facets["buffers"]):
        yield Delta("buffers", names, len(expected.names))


def _work_deltas(
    reference: Side, leg: Placed, step: int, facet: str, one: StepHead, other: StepHead
) -> Iterator[Delta]:
    """Compare batches or losses backward pass by backward pass; the first step after a seam may lack some."""
    skip = leg.micro if step == leg.first else 0
    left, right = one.micros[skip:], other.micros
    for i, (a, b) in enumerate(zip(left, right, strict=False)):
        mine, theirs = (a.batch, b.batch) if facet == "batch" else (a.loss, b.loss)
        if mine is None or theirs is None or mine == theirs:
            continue
        names: tuple[str, ...] = ()
        of = 0
        details = reference.detail(step), leg.detail(step)
        if details[0] is not None and details[1] is not None:
            rows = [d.batches if facet == "batch" else d.losses for d in details if d is not None]
            x, y = rows[0][i + skip], rows[1][i]
            names, of = differing(x, y), len(set(x.names) | set(y.names))
            if step == leg.first and facet == "batch" and not Counter(y.digests) - Counter(x.digests):
                # The reference was given more before the model was called: by a look at results, after it saved.
                names = ()
            if not names:
                continue
        yield Delta(facet, names, of, skip + i + 1 if len(one.micros) > 1 else 0)
        return
    if len(left) != len(right):
        yield Delta(facet, (f"{len(left)} backward passes expected, {len(right)} taken",), 1)


def saved_deltas(
    reference: Side, leg: Placed, step: int, noise: frozenset[str], *, fresh: bool = False
) -> Iterator[Delta]:
    """Yield how what is saved after a step differs."""
    for one, other in _paired_saves(reference, leg, step):
        names = tuple(n for n in _differing_leaves(one, other, floating=fresh) if n not in noise)
        if names:
            lines = tuple(apart(one, other, names=names, most=_MOST_NAMES))
            yield Delta("saved", names, len(one.names), lines=lines)
            return


def _paired_saves(reference: Side, leg: Placed, step: int | None = None) -> Iterator[tuple[Tensors, Tensors]]:
    """Pair what both sides saved at equal moments, in order."""
    left, right = reference.saves, leg.saves
    steps = sorted(left.keys() & right.keys()) if step is None else [step] if step in left and step in right else []
    for at in steps:
        for micro in sorted(left[at].keys() & right[at].keys()):
            if len(left[at][micro]) == len(right[at][micro]):
                for one, other in zip(left[at][micro], right[at][micro], strict=True):
                    yield one(), other()


def _differing_leaves(one: Tensors, other: Tensors, *, floating: bool = False) -> tuple[str, ...]:
    """Return the entries that differ, single values first; texts and what is no state by its name are passed over."""
    if (one.names, one.kinds, one.digests) == (other.names, other.kinds, other.digests):
        return ()
    mine, theirs = one.by_name(), other.by_name()
    names = [
        name
        for name in mine.keys() & theirs.keys()
        if mine[name][:2] != theirs[name][:2]
        and (
            _is_floating(mine[name][0])
            or not (floating or _NOT_STATE.search(name) or "text" in {mine[name][0], theirs[name][0]})
        )
    ]
    return tuple(sorted(names, key=lambda name: (_is_many(mine[name][0]), name)))


def _is_floating(kind: str) -> bool:
    return kind.startswith(_FLOATING) and _is_many(kind)


def _is_many(kind: str) -> bool:
    return "[" in kind and shape_of(kind) not in {"[]", "[1]"}


def _end(reference: Side, leg: Placed) -> Divergence | None:
    """Compare where and how the two end."""
    if reference.last != leg.last:
        if leg.leg.ended is None and leg.last < reference.last:
            return None  # cut off on purpose; the next leg takes over
        names = [f"{leg.last} steps instead of {reference.last}"]
        step = min(reference.last, leg.last) + 1
        return Divergence(step=step, rank=leg.leg.rank, facet="end", names=names, differing=1, of=1)
    step = reference.last + 1
    one, other = reference.detail(step), leg.detail(step)
    if one is None or other is None:
        return None
    for facet in STATE_FACETS:
        if facet in one.facets and facet in other.facets:
            names_of = differing(one.facets[facet], other.facets[facet])
            if names_of:
                return _divergence(step, leg, Delta(facet, names_of, len(one.facets[facet].names)))
    return None


def _divergence(step: int, leg: Placed, delta: Delta) -> Divergence:
    return Divergence(
        step=step,
        rank=leg.leg.rank,
        facet=delta.facet,
        names=shown(delta.names),
        differing=max(1, len(delta.names)),
        of=max(1, delta.of),
        micro=delta.micro,
    )


def _check_same_model(reference: Side, leg: Placed, *, strict: bool) -> None:
    """Refuse to compare models whose parameters have other names or shapes.

    A leg that resumes was started with the same command, so that a difference is a fault of its own, unless nothing is
    in common.
    """
    one, other = reference.detail(leg.first), leg.detail(leg.first)
    if one is None or other is None or "weights" not in one.facets or "weights" not in other.facets:
        return
    left, right = one.facets["weights"].by_name(), other.facets["weights"].by_name()
    if not strict and left.keys() & right.keys():
        return
    for name in sorted(left.keys() ^ right.keys()):
        mine, theirs = ("has", "does not") if name in left else ("does not have", "does")
        msg = (
            f"these are different models: the reference {mine} a parameter {name.split('/', 1)[-1]}, and the other {theirs}. "
            "Compare two runs of one model."
        )
        raise IncomparableError(msg)
    for name in sorted(left):
        if shape_of(left[name][0]) != shape_of(right[name][0]):
            msg = (
                f"these are different models: {name.split('/', 1)[-1]} is {left[name][0]} in the reference and "
                f"{right[name][0]} in the other. Compare two runs of one model."
            )
            raise IncomparableError(msg)


def shape_of(kind: str) -> str:
    """Return the shape in a kind, such as ``[64, 10]``."""
    return kind[kind.find("[") :].partition("@")[0]


def _unseen(reference: Side, leg: Placed) -> tuple[str, ...]:
    """List the facets that neither side could see, and what a probe gave up on."""
    said = {str(event.data.get("what")) for side in (reference, leg) for _, event in side.events("not-observed")}
    head, other = reference.head(leg.first), leg.head(leg.first)
    if head is not None and other is not None:
        for facet in ("batch", "loss", "gradients"):
            if facet not in head.roots or facet not in other.roots:
                said.add(f"{facet}: no module call, loader or backward pass showed it")
    if isinstance(reference, Placed) or leg.last >= reference.last:
        final = leg.head(leg.last + 1), reference.head(reference.last + 1)
        if leg.last == reference.last and leg.leg.ended is not None:
            seen = [head.roots if head is not None else {} for head in final]
            if not all("weights" in roots for roots in seen):
                said.add("the weights after the last step: they were gone when the process ended")
    return tuple(sorted(said))
