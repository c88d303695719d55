"""Rules for generators: seeded again, not restored, shifted, shared between ranks; and those that do not matter."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from bitproof.compare.causes.case import Case
from bitproof.compare.causes.made import Made, made
from bitproof.compare.mersenne import shift
from bitproof.compare.timeline import Placed, Side, Timeline
from bitproof.compare.verdict import Confidence, Latent
from bitproof.trail.records import Event, StepHead

Code = Literal["rng-reseeded", "rng-not-restored", "rng-shifted"]
_WORK = frozenset({"batch", "loss", "gradients"})


@dataclass(frozen=True)
class Finding:
    """One generator that differs from the reference's at a step."""

    generator: str
    step: int
    expected: int
    found: int
    right_when_called: bool = False
    """It differs before the data is fetched, and no longer when the model is called."""


def generators(case: Case) -> Iterator[Made]:
    """Find generators that are drawn from and differ, where the work of a step is what differs."""
    if case.facet not in _WORK:
        return
    found = [
        f
        for f in findings(case.reference, case.leg, case.divergence.step)
        if drawn(case.reference, case.leg, f.generator) and f.generator not in _shared(case) and not _too_early(case, f)
    ]
    explained = [(f.generator, *explain(case, f)) for f in found]
    confidence: Confidence = case.surest if root_in_generators(case) else "possible"
    if confidence == "certain" and case.arithmetic_differs and case.facet != "batch":
        confidence = "likely"
    for code, said in _SAID.items():
        fits = [(name, evidence) for name, its, evidence in explained if its == code]
        # A run that starts anew restores nothing: only a stream that both share tells anything.
        if fits and (case.resumed or code == "rng-shifted"):
            names = " and ".join(name for name, _ in fits)
            evidence = [f"{name}: {line}" for name, lines in fits for line in lines]
            where = case.where("seed", generator=fits[0][0]) if code == "rng-reseeded" else None
            yield made(code, confidence, f"the generator of {names} {said}", evidence, where)


def shared_streams(case: Case) -> Iterator[Made]:
    """Find ranks that draw the same numbers after the seam, though they did not in the reference."""
    shared = _shared(case)
    if not shared:
        return
    name, other = next(iter(shared.items()))
    ranks = sorted((case.leg.leg.rank, other))
    evidence = [
        f"{name}'s generator at the seam is the same on ranks {ranks[0]} and {ranks[1]}",
        "the reference's ranks had different states there",
    ]
    summary = f"ranks {ranks[0]} and {ranks[1]} draw the same random numbers after the seam"
    yield made("ranks-share-stream", case.surest, summary, evidence, case.where("rng-restored", generator=name))


def _shared(case: Case) -> dict[str, int]:
    """Return generators that another rank has the same state of, though not in the reference, and which rank."""
    expected = case.reference.head(case.leg.first)
    if not case.resumed or expected is None:
        return {}
    mine = case.leg.leg.steps[0]
    found: dict[str, int] = {}
    for reference, peer in case.peers:
        theirs, wanted = peer.leg.steps[0] if peer.leg.steps else None, reference.head(peer.first)
        if theirs is None or wanted is None:
            continue
        for name in sorted(_generators_of(mine) & _generators_of(theirs)):
            same = _state(mine, name) == _state(theirs, name)
            if same and _state(expected, name) != _state(wanted, name) and drawn(case.reference, case.leg, name):
                found.setdefault(name, peer.leg.rank)
    return found


def root_in_generators(case: Case) -> bool:
    """Tell whether a generator that differs explains the divergence by itself.

    Other positions in a data loader's dataset are no matter of a generator's state now: the loader has a position of
    its own, which a restored generator would not bring back. Other content at the same positions is.
    """
    if case.facet not in _WORK:
        return False
    if case.facet == "batch" and case.uses_loader and not _same_positions(case) and not _begun(case):
        return False
    return any(drawn_for(case, f) for f in findings(case.reference, case.leg, case.divergence.step))


def drawn_for(case: Case, finding: Finding) -> bool:
    """Tell whether a generator is drawn from for what differs: in the model's work, or for the batch before it.

    One that only shuffles each epoch does not explain another loss. Where nothing later was read, it may have been.
    """
    if _too_early(case, finding):
        return False
    if case.facet == "batch" and finding.generator == "torch" and _order_is_drawn(case):
        return True
    step, name = case.divergence.step, finding.generator
    # Where the model is called with the right state, the leg's moved in between because it was put right.
    for side in (case.reference,) if finding.right_when_called else (case.reference, case.leg):
        head, after, before = side.head(step), side.head(step + 1), side.head(step - 1)
        if head is None:
            continue
        called = head.rng_forward.get(name)
        if case.facet != "batch":
            states = called, after.rng_start.get(name) if after is not None else None
        elif case.uses_loader:
            states = head.rng_start.get(name), called
        elif before is None and side is case.leg and step > 1:
            continue
        else:
            states = before.rng_forward.get(name) if before is not None else None, called
        if None in states or states[0] != states[1]:
            return True
    return False


def findings(reference: Side, leg: Placed, step: int) -> list[Finding]:
    """List the generators that differ at a step, before or after its data was fetched."""
    one, other = reference.head(step), leg.head(step)
    if one is None or other is None:
        return []
    phases = [(one.rng_start, other.rng_start), (one.rng_forward, other.rng_forward)]
    if step == leg.first and leg.micro:
        phases = [(one.micros[leg.micro].rng, other.rng_forward)]
    found = []
    for name in sorted(_generators_of(one) & _generators_of(other)):
        for before, now in phases:
            expected, actual = before.get(name), now.get(name)
            if expected is not None and actual is not None and expected != actual:
                called = phases[-1][0].get(name), phases[-1][1].get(name)
                right = None not in called and called[0] == called[1]
                found.append(Finding(name, step, expected, actual, right))
                break
    return found


def _too_early(case: Case, finding: Finding) -> bool:
    """Tell whether a generator was right again before what differs: it explains a batch then, and nothing later."""
    return finding.right_when_called and case.facet != "batch"


def _order_is_drawn(case: Case) -> bool:
    """Tell whether a pass begins at the step whose order, or whose workers' seeds, come from torch's global generator."""
    return any(
        not e.data.get("own_generator") and (e.data.get("workers") or "Random" in str(e.data.get("sampler")))
        for e in _begun(case)
    )


def drawn(reference: Side, leg: Placed, name: str) -> bool:
    """Tell whether a generator was drawn from after the seam, in either leg."""
    return any(_moves(side, name, leg.first, min(side.last, leg.last)) for side in (reference, leg))


def explain(case: Case, finding: Finding) -> tuple[Code, list[str]]:
    """Say which of the three it is, with evidence."""
    name = finding.generator
    # A run that starts anew is seeded by right; only one that resumes can have gone back.
    earlier = _earlier(case.reference, name, finding) if case.resumed else None
    seeded = case.where("seed", generator=name) if case.resumed else None
    if earlier is not None:
        evidence = [f"its state at step {finding.step} is the one the reference had at step {earlier}"]
        if seeded:
            evidence.append(f"it was seeded at {seeded}")
        return "rng-reseeded", evidence
    order = [
        e.kind
        for e in case.leg.leg.events
        if e.step == 0 and e.kind in {"seed", "rng-restored"} and e.data.get("generator") == name
    ]
    apart = _apart(case, finding)
    restored = order[-1:] == ["rng-restored"]
    if seeded and not restored:
        evidence = [f"it was seeded at {seeded} and its state was not restored afterwards"]
        if apart is not None:
            evidence.append(f"it is {_draws(apart)} the reference's state")
        return "rng-reseeded", evidence
    if apart is not None:
        evidence = [f"at step {finding.step} it is {_draws(apart)} the reference's state, on the same stream"]
        if restored and apart > 0:
            evidence.append("its state was restored, and then drawn from")
        return "rng-shifted", [*evidence, *_iterators(case, finding)]
    evidence = [f"its state at step {finding.step} is none that the reference had"]
    if not restored:
        evidence.append("its state was not restored before the first step")
    return "rng-not-restored", evidence


def latent(reference: Timeline, leg: Placed, *, also_drawn: bool) -> list[Latent]:
    """List generators that differ right after the seam without any consequence.

    Args:
        reference: the one side.
        leg: the other.
        also_drawn: list also those that are drawn from, as the legs are equal all the same.
    """
    found = []
    for finding in findings(reference, leg, leg.first):
        name = finding.generator
        if drawn(reference, leg, name):
            if not also_drawn:
                continue
            summary = _harmless(reference, leg, name)
        else:
            summary = f"{name}'s generator differs, nothing draws from it"
        found.append(Latent("rng-not-restored", summary))
    return found


def _harmless(reference: Timeline, leg: Placed, name: str) -> str:
    one, other = reference.head(leg.first), leg.head(leg.first)
    assert one is not None
    assert other is not None
    if one.rng_forward.get(name) == other.rng_forward.get(name):
        return (
            f"{name}'s generator differs before the data of step {leg.first} is fetched and is right when the model is "
            "called; harmless while nothing draws from it in between"
        )
    return f"{name}'s generator differs and is drawn from, and nothing that counts depends on it"


_SAID: dict[Code, str] = {
    "rng-reseeded": "was seeded again instead of continuing",
    "rng-not-restored": "was not restored",
    "rng-shifted": "is on the right stream, but not at the right place",
}


def _moves(side: Side, name: str, first: int, last: int) -> bool:
    """Tell whether a generator's state changes from step to step, or inside one."""
    seen: set[int] = set()
    for step in range(first, last + 1):
        head = side.head(step)
        if head is not None:
            seen.update(state for state in (head.rng_start.get(name), head.rng_forward.get(name)) if state is not None)
        if len(seen) > 1:
            return True
    return False


def _same_positions(case: Case) -> bool:
    heads = case.heads()
    if heads is None:
        return False
    skip = case.leg.micro if case.at_seam else 0
    pairs = [(a.indices, b.indices) for a, b in zip(heads[0].micros[skip:], heads[1].micros, strict=False)]
    return bool(pairs) and all(a is not None and a == b for a, b in pairs)


def _earlier(reference: Side, name: str, finding: Finding) -> int | None:
    for step in range(1, finding.step):
        head = reference.head(step)
        if head is not None and finding.found in {head.rng_start.get(name), head.rng_forward.get(name)}:
            return step
    return None


def _apart(case: Case, finding: Finding) -> int | None:
    expected = case.reference.generator_state(finding.generator, finding.expected)
    found = case.leg.generator_state(finding.generator, finding.found)
    return None if expected is None or found is None else shift(expected, found)


def _begun(case: Case) -> list[Event]:
    """Return the passes over loaders that begin, in the reference, at the step that differs."""
    return [event for step, event in case.reference.events("loader-started") if step == case.divergence.step - 1]


def _iterators(case: Case, finding: Finding) -> Iterator[str]:
    """Name the loaders' iterators that one leg made before the step and the other did not: each draws a seed."""
    if finding.generator != "torch":
        return
    before = finding.step - 1
    sides = [[(i, e) for i, (at, e) in enumerate(side.events()) if at == before] for side in (case.reference, case.leg)]
    since = max((i for i, e in sides[1] if e.kind == "rng-restored" and e.data.get("generator") == "torch"), default=-1)
    here = [e for i, e in sides[1] if e.kind in _ITERATORS and i > since]
    there = [e for _, e in sides[0] if e.kind in _ITERATORS]
    if len(here) > len(there):
        yield f"before that step a data loader's iterator was made{_at(here[-1])}, and in the reference none: it draws a seed"
    elif len(there) > len(here):
        yield f"in the reference a data loader's iterator was made{_at(there[-1])} before that step, and here none: it draws a seed"


_ITERATORS = frozenset({"loader-started", "eval-loader-started"})


def _at(event: Event) -> str:
    return f" at {event.where}" if event.where else ""


def _draws(apart: int) -> str:
    count = abs(apart)
    return f"{count:,} 32-bit draw{'s' if count != 1 else ''} {'ahead of' if apart > 0 else 'behind'}"


def _generators_of(head: StepHead) -> set[str]:
    return set(head.rng_start) | set(head.rng_forward)


def _state(head: StepHead, name: str) -> tuple[int | None, int | None]:
    return head.rng_start.get(name), head.rng_forward.get(name)


RULES = (shared_streams, generators)
