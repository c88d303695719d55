"""The first step and the first facet, in causal order, that differ."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from bitproof.compare.timeline import Placed, Side
from bitproof.compare.verdict import Divergence
from bitproof.errors import IncomparableError
from bitproof.trail.records import RESULT_FACETS, STATE_FACETS, Event, StepHead, Tensors

_MOST_NAMES = 5
_NOT_STATE = re.compile(r"(^|[._\-])(rng|random|generator|time|timestamp|date|path|dir)", re.IGNORECASE)


@dataclass(frozen=True)
class Delta:
    """How one facet differs at one step."""

    facet: str
    names: tuple[str, ...]
    of: int
    micro: int = 0


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


def walk(reference: Side, leg: Placed, *, upto: int | None = None, noise: frozenset[str] = frozenset()) -> Comparison:
    """Compare a placed leg with the reference to the end.

    Args:
        reference: the one side.
        leg: the other, on the reference's clock.
        upto: compare no step beyond this one, and not the ends.
        noise: names in saved trees that are known to differ from run to run.

    Raises:
        IncomparableError: they train different models.
    """
    last = min(reference.last, leg.last) if upto is None else min(reference.last, leg.last, upto)
    compared = identical = 0
    first: Divergence | None = None
    saved: Divergence | None = None
    for step in range(leg.first, last + 1):
        compared += 1
        delta = next(step_deltas(reference, leg, step), None) if first is None else None
        if delta is not None:
            first = _divergence(step, leg, delta)
        identical += first is None
        if first is None and saved is None:
            kept = next(saved_deltas(reference, leg, step, noise), None)
            saved = None if kept is None else _divergence(step, leg, kept)
    if first is None and upto is None:
        first = _end(reference, leg)
    if first is None and saved is not None:
        first, identical = saved, saved.step - leg.first
    return Comparison(compared, identical, first, _unseen(reference, leg), saved)


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


def saved_noise(reference: Side, leg: Placed) -> frozenset[str]:
    """Return names in saved trees that differ although the legs should be equal: times, paths and the like."""
    names: set[str] = set()
    for one, other in _paired_saves(reference, leg):
        names.update(_differing_leaves(reference, leg, one, other))
    return frozenset(names)


def _facet_delta(reference: Side, leg: Placed, step: int, facet: str) -> Delta | None:
    one, other = reference.detail(step), leg.detail(step)
    if one is None or other is None or facet not in one.facets or facet not in other.facets:
        return Delta(facet, (), 0)
    left, right = one.facets[facet], other.facets[facet]
    if facet == "weights" and step == leg.first:
        _check_same_model(left, right)
    names = differing(left, right)
    return Delta(facet, names, len(set(left.names) | set(right.names))) if names else None


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
    details = reference.detail(step), leg.detail(step)
    for i, (a, b) in enumerate(zip(left, right, strict=False)):
        mine, theirs = (a.batch, b.batch) if facet == "batch" else (a.loss, b.loss)
        if mine is None or theirs is None or mine == theirs:
            continue
        names: tuple[str, ...] = ()
        of = 0
        if details[0] is not None and details[1] is not None:
            rows = [d.batches if facet == "batch" else d.losses for d in details if d is not None]
            x, y = rows[0][i + skip], rows[1][i]
            names, of = differing(x, y), len(set(x.names) | set(y.names))
            if not names:
                continue
        yield Delta(facet, names, of, skip + i + 1 if len(one.micros) > 1 else 0)
        return
    if len(left) != len(right):
        yield Delta(facet, (f"{len(left)} backward passes expected, {len(right)} taken",), 1)


def saved_deltas(reference: Side, leg: Placed, step: int, noise: frozenset[str]) -> Iterator[Delta]:
    """Yield how what is saved after a step differs."""
    for one, other in _paired_saves(reference, leg, step):
        names = tuple(n for n in _differing_leaves(reference, leg, one, other) if n not in noise)
        if names and one.saved is not None:
            yield Delta("saved", names, len(one.saved.digests) // 8)
            return


def _paired_saves(reference: Side, leg: Placed, step: int | None = None) -> Iterator[tuple[Event, Event]]:
    """Pair what both sides saved at equal moments, in order."""
    left, right = _saves(reference, step), _saves(leg, step)
    for moment in sorted(left.keys() & right.keys()):
        if len(left[moment]) == len(right[moment]):
            yield from zip(left[moment], right[moment], strict=True)


def _saves(side: Side, step: int | None) -> dict[tuple[int, int], list[Event]]:
    found: dict[tuple[int, int], list[Event]] = {}
    for at, event in side.events("file-saved"):
        if event.saved is not None and (step is None or at == step):
            found.setdefault((at, event.micro), []).append(event)
    return found


def _differing_leaves(reference: Side, leg: Placed, one: Event, other: Event) -> tuple[str, ...]:
    assert one.saved is not None
    assert other.saved is not None
    left, right = _tensors(reference, one), leg.leg.tensors(other.saved)
    if left is None:
        return ()
    mine, theirs = left.by_name(), right.by_name()
    return tuple(
        name
        for name in sorted(mine.keys() & theirs.keys())
        if mine[name][:2] != theirs[name][:2]
        and not _NOT_STATE.search(name)
        and "text" not in {mine[name][0], theirs[name][0]}
    )


def _tensors(side: Side, event: Event) -> Tensors | None:
    legs = side.legs if not isinstance(side, Placed) else (side,)
    holder = next((p for p in legs if any(e is event for e in p.leg.events)), None)
    return holder.leg.tensors(event.saved) if holder is not None and event.saved is not None else None


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


def _check_same_model(one: Tensors, other: Tensors) -> None:
    """Refuse to compare models whose parameters have other names or shapes."""
    left, right = one.by_name(), other.by_name()
    for name in sorted(left.keys() ^ right.keys()):
        mine, theirs = ("has", "does not") if name in left else ("does not have", "does")
        msg = (
            f"these are different models: the reference {mine} a parameter {name.split('/', 1)[-1]}, and the other {theirs}. "
            "Compare two runs of one model."
        )
        raise IncomparableError(msg)
    for name in sorted(left):
        if _shape(left[name][0]) != _shape(right[name][0]):
            msg = (
                f"these are different models: {name.split('/', 1)[-1]} is {left[name][0]} in the reference and "
                f"{right[name][0]} in the other. Compare two runs of one model."
            )
            raise IncomparableError(msg)


def _shape(kind: str) -> str:
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
