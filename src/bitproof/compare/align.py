"""Find where a leg joins a reference: by the content of its first state, whatever the script calls its steps."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bitproof.compare.timeline import Placed, Side
from bitproof.trail.reader import Leg
from bitproof.trail.records import SEAM_FACETS, StepHead

How = Literal["state", "part", "file", "nothing"]
_PARTS = (("weights", "optimizer"), ("weights", "buffers"), ("weights",), ("optimizer",))
"""Parts of the state that are looked up when the whole of it is nowhere, the most telling first."""
_VOTING = ("weights", "buffers", "optimizer")
_MOST_MATCHING = 1_000
"""Steps after a spot that are looked at to tell it from an equal one."""


@dataclass(frozen=True)
class Joint:
    """Where a leg joins.

    Args:
        step: steps complete before the leg's first one; None if that is not to be found.
        micro: backward passes of its first step that are already taken.
        how: by the whole first state, by part of it, by the file that was loaded, or not at all.
    """

    step: int | None
    micro: int
    how: How


def join(reference: Side, leg: Leg, *, not_after: int | None = None, interrupted: Sequence[Placed] = ()) -> Joint:
    """Find the seam of a leg.

    Args:
        reference: what to join.
        leg: a leg with at least one step.
        not_after: the step at which the previous leg was cut off; no seam lies behind it.
        interrupted: the earlier legs, whose saved files are looked up if no state matches.
    """
    last = reference.last if not_after is None else min(not_after, reference.last)
    for how, found in _searches(reference, leg, last, interrupted):
        if found is not None:
            return Joint(found[0], found[1], how)
    return Joint(None, 0, "nothing")


Spot = tuple[int, int]
"""Steps complete, and backward passes taken of the next one."""


def _searches(reference: Side, leg: Leg, last: int, interrupted: Sequence[Placed]) -> Iterator[tuple[How, Spot | None]]:
    """Search ever more loosely: the whole state, most tensors in common, part of the state, the file loaded."""
    yield "state", _by_roots(reference, leg, last, SEAM_FACETS)
    step = _by_tensors(reference, leg, last)
    yield "part", None if step is None else _inside(reference, leg, step)
    for part in _PARTS:
        yield "part", _by_roots(reference, leg, last, part)
    step = _by_file(leg, interrupted)
    yield "file", None if step is None else (step, 0)


def _by_roots(reference: Side, leg: Leg, last: int, facets: Iterable[str]) -> Spot | None:
    spots = [spot for s in range(last + 1) for spot in _spots(reference.head(s + 1), s, leg.steps[0], tuple(facets))]
    if len(spots) <= 1:
        return spots[0] if spots else None
    # Ties (a rate of 0, a skipped step, a window without buffers) go to the longest matching continuation, then to
    # the spot that leaves as many passes as the leg took, then to the latest.
    return max(spots, key=lambda spot: (_matching(reference, leg, spot), _fits(reference, leg, spot), spot))


def _spots(one: StepHead | None, step: int, other: StepHead, facets: tuple[str, ...]) -> Iterator[Spot]:
    """Yield where around a step of the reference the leg's first state is found."""
    if one is None:
        return
    fixed = [f for f in facets if f != "buffers"]
    if not all(one.roots.get(f) == other.roots.get(f) for f in fixed) or not any(f in one.roots for f in facets):
        return
    if "buffers" not in facets or one.roots.get("buffers") == other.roots.get("buffers"):
        yield step, 0
    for micro in range(1, len(one.micros)):
        if "buffers" not in facets or one.micros[micro].buffers == other.roots.get("buffers"):
            yield step, micro


def _matching(reference: Side, leg: Leg, spot: Spot) -> int:
    """Count how many backward passes on both sides agree from here on."""
    count, (step, skip) = 0, spot
    for local, head in enumerate(leg.steps[:_MOST_MATCHING], start=1):
        other = reference.head(step + local)
        if other is None or any(other.roots.get(f) != head.roots.get(f) for f in ("weights", "optimizer")):
            break
        for mine, theirs in zip(head.micros, other.micros[skip if local == 1 else 0 :], strict=False):
            if mine.batch != theirs.batch:
                return count
            count += 1
    return count


def _fits(reference: Side, leg: Leg, spot: Spot) -> bool:
    head = reference.head(spot[0] + 1)
    return head is not None and len(head.micros) - spot[1] == len(leg.steps[0].micros)


def _inside(reference: Side, leg: Leg, step: int) -> Spot:
    """Return the spot in a step that leaves as many backward passes as the leg took."""
    head = reference.head(step + 1)
    missing = len(head.micros) - len(leg.steps[0].micros) if head is not None and leg.steps[0].micros else 0
    return step, max(0, missing)


def _by_tensors(reference: Side, leg: Leg, last: int) -> int | None:
    """Return the step with most tensors in common, counting only tensors that change as training goes on."""
    detail = leg.detail(1)
    if detail is None:
        return None
    wanted = {
        (facet, name): digest
        for facet in _VOTING
        if facet in detail.facets
        for name, digest in zip(detail.facets[facet].names, detail.facets[facet].digests, strict=True)
    }
    common: dict[int, list[tuple[str, str]]] = {}
    for step in range(last + 1):
        found = reference.detail(step + 1)
        if found is not None:
            common[step] = [
                (facet, name)
                for facet in _VOTING
                if facet in found.facets
                for name, digest in zip(found.facets[facet].names, found.facets[facet].digests, strict=True)
                if wanted.get((facet, name)) == digest
            ]
    held = Counter(item for items in common.values() for item in items)
    votes = {step: sum(held[item] <= max(1, len(common) // 2) for item in items) for step, items in common.items()}
    best = max(votes, key=lambda step: (votes[step], step), default=None)
    return best if best is not None and votes[best] > 0 else None


def _by_file(leg: Leg, interrupted: Sequence[Placed]) -> int | None:
    """Return the step at which the file that the leg loaded was written."""
    loaded = [event.data.get("path") for event in leg.events if event.kind == "file-loaded" and event.step == 0]
    for path in loaded:
        for placed in reversed(interrupted):
            steps = [step for step, event in placed.events("file-saved") if _same_file(event.data.get("path"), path)]
            if steps:
                return steps[-1]
    return None


def _same_file(saved: str | None, loaded: str | None) -> bool:
    """Tell whether a file that was loaded may be one that was saved, perhaps under a temporary name first."""
    if saved is None or loaded is None:
        return False
    one, other = Path(saved), Path(loaded)
    return one == other or (one.parent == other.parent and (other.name in one.name or one.stem in other.name))
