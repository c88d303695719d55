"""Find where a leg joins a reference: by the content of its first state, whatever the script calls its steps."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bitproof.compare.timeline import Placed, Side
from bitproof.trail.reader import Leg
from bitproof.trail.records import SEAM_FACETS, StepHead, Tensors

How = Literal["state", "part", "file", "nothing"]
_PARTS = (("weights", "optimizer"), ("weights", "buffers"), ("weights",), ("optimizer",))
"""Parts of the state that are looked up when the whole of it is nowhere, the most telling first."""


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
    for how, step in _searches(reference, leg, last, interrupted):
        if step is not None:
            return Joint(step, _micro(reference, leg, step), how)
    return Joint(None, 0, "nothing")


def _searches(
    reference: Side, leg: Leg, last: int, interrupted: Sequence[Placed]
) -> Iterator[tuple[How, int | None]]:
    """Search ever more loosely: the whole state, most tensors in common, part of the state, the file loaded."""
    yield "state", _by_roots(reference, leg, last, SEAM_FACETS)
    yield "part", _by_tensors(reference, leg, last)
    for part in _PARTS:
        yield "part", _by_roots(reference, leg, last, part)
    yield "file", _by_file(leg, interrupted)


def _by_roots(reference: Side, leg: Leg, last: int, facets: Iterable[str]) -> int | None:
    candidates = [s for s in range(last + 1) if _same_state(reference.head(s + 1), leg.steps[0], facets)]
    return _longest(reference, leg, candidates) if candidates else None


def _same_state(one: StepHead | None, other: StepHead, facets: Iterable[str]) -> bool:
    if one is None:
        return False
    return all(one.roots.get(facet) == other.roots.get(facet) for facet in facets) and any(
        facet in one.roots for facet in facets
    )


def _longest(reference: Side, leg: Leg, candidates: list[int]) -> int:
    """Return the candidate with the longest matching continuation; of equals the latest."""
    if len(candidates) == 1:
        return candidates[0]
    return max(candidates, key=lambda step: (_matching(reference, leg, step), step))


def _matching(reference: Side, leg: Leg, step: int) -> int:
    count = 0
    for local, head in enumerate(leg.steps, start=1):
        other = reference.head(step + local)
        if other is None or any(other.roots.get(f) != head.roots.get(f) for f in (*SEAM_FACETS, "batch")):
            break
        count += 1
    return count


def _micro(reference: Side, leg: Leg, step: int) -> int:
    """Return how many backward passes of its first step the leg did not take itself."""
    expected, head = reference.head(step + 1), leg.steps[0]
    if expected is None or len(head.micros) >= len(expected.micros) or not head.micros:
        return 0
    return len(expected.micros) - len(head.micros)


def _by_tensors(reference: Side, leg: Leg, last: int) -> int | None:
    """Return the step with most tensors in common, counting only tensors that change as training goes on."""
    detail = leg.detail(1)
    if detail is None:
        return None
    wanted = _contents(detail.facets)
    votes: dict[int, int] = {}
    held: dict[tuple[str, str, int], int] = {}
    contents = {s: _contents(d.facets) for s in range(last + 1) if (d := reference.detail(s + 1)) is not None}
    for found in contents.values():
        for item in found:
            held[item] = held.get(item, 0) + 1
    for step, found in contents.items():
        votes[step] = sum(1 for item in wanted & found if held[item] <= max(1, len(contents) // 2))
    best = max(votes, key=lambda step: (votes[step], step), default=None)
    return best if best is not None and votes[best] > 0 else None


def _contents(facets: dict[str, Tensors]) -> set[tuple[str, str, int]]:
    return {
        (facet, name, digest)
        for facet in ("weights", "buffers", "optimizer")
        if facet in facets
        for name, digest in zip(facets[facet].names, facets[facet].digests, strict=True)
    }


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
