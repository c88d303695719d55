"""Rules for data that is not what the reference was given: restarted, skipped, repeated, reordered, changed."""

from collections.abc import Iterator
from dataclasses import dataclass

from bitproof.compare.causes.case import Batch, Case, batch_at
from bitproof.compare.causes.made import Made, made
from bitproof.compare.causes.randomness import root_in_generators
from bitproof.compare.verdict import Confidence
from bitproof.trail.records import Sample


@dataclass(frozen=True)
class _Found:
    expected: Batch
    batch: Batch
    position: int
    """Of ``expected`` among the reference's batches."""


def data(case: Case) -> Iterator[Made]:
    """Name what became of the data, where the batch is what differs first."""
    if case.facet not in {"batch", "loss"}:
        return
    found = _first_unequal(case)
    if found is None:
        return
    where = case.where("loader-started")
    # Without a loader the batch comes straight from a generator, which is then the root: this is what follows.
    # Nor is it the root where the loader runs with other settings.
    other_loader = any(d.key.startswith("loader.") for d in case.environment)
    surest: Confidence = "likely" if other_loader or root_in_generators(case) else case.surest
    same_place = found.expected.indices is not None and found.expected.indices == found.batch.indices
    if same_place:
        yield _changed(case, found, surest, where)
        return
    equal_at = _equal_positions(case, found)
    if equal_at:
        yield _moved(case, found, equal_at, surest, where)
        return
    overlap = _overlap(case, found)
    if overlap is not None:
        yield made("data-reordered", surest, *overlap, where)


def _first_unequal(case: Case) -> _Found | None:
    step = case.divergence.step
    heads = case.heads()
    if heads is None:
        return None
    skip = case.leg.micro if case.at_seam else 0
    for micro in range(len(heads[1].micros)):
        expected, batch = batch_at(heads[0], step, micro + skip), batch_at(heads[1], step, micro)
        if expected is None or batch is None:
            return None
        if expected.root != batch.root or (case.facet == "loss" and expected.indices != batch.indices):
            position = next(
                (i for i, b in enumerate(case.batches) if (b.step, b.micro) == (step, micro + skip)), len(case.batches)
            )
            return _Found(expected, batch, position)
    return None


def _changed(case: Case, found: _Found, surest: Confidence, where: str | None) -> Made:
    same = sum(a == b for a, b in zip(found.expected.samples, found.batch.samples, strict=False))
    evidence = [
        f"the same {len(found.batch.indices or ())} positions of the dataset: {_some(found.batch.indices)}",
        f"{same} of {len(found.expected.samples)} samples have the same content",
    ]
    summary = f"step {case.divergence.step} took the same positions of the dataset, with other content (augmentation?)"
    return made("data-changed", surest, summary, evidence, where)


def _equal_positions(case: Case, found: _Found) -> list[int]:
    """Return where in the reference the leg's batch occurs, by position in the dataset or else by content."""
    if found.batch.indices is not None:
        return [i for i, b in enumerate(case.batches) if b.indices == found.batch.indices]
    if found.batch.samples:
        return [i for i, b in enumerate(case.batches) if b.samples == found.batch.samples]
    return [i for i, b in enumerate(case.batches) if b.root is not None and b.root == found.batch.root]


def _moved(case: Case, found: _Found, equal_at: list[int], surest: Confidence, where: str | None) -> Made:
    starts = _starts(case)
    restarted = [i for i in equal_at if i in starts and i < found.position]
    earlier = [i for i in equal_at if i < found.position]
    at = max(restarted or earlier or equal_at[:1])
    name = _name(case, at)
    expected = _name(case, found.position)
    evidence = [f"the batch at step {case.divergence.step} equals the reference's {name}; expected was its {expected}"]
    apart = abs(found.position - at)
    following = _run_length(case, at)
    if following > 1:
        evidence.append(f"so do the {following - 1} batches after it")
    evidence += case.saved_before()
    if restarted:
        start = "of the run" if at == 0 else "of an epoch"
        evidence.insert(1, f"that is the first batch {start}")
        summary = f"the data starts again: the first resumed batch is the reference's {name}, the first {start}"
        return made("data-restarted", surest, summary, evidence, where)
    batches = f"{apart} batch{'es' if apart != 1 else ''}"
    if earlier:
        summary = f"{batches} repeated: the resumed batch is the reference's {name}, expected was its {expected}"
        return made("data-repeated", surest, summary, evidence, where)
    summary = f"{batches} skipped: the resumed batch is the reference's {name}, expected was its {expected}"
    return made("data-skipped", surest, summary, evidence, where)


def _starts(case: Case) -> set[int]:
    """Return the positions of batches with which the run or a loader's iteration starts."""
    begun = {(step + 1, event.micro) for step, event in case.reference.events("loader-started")}
    return {0} | {i for i, batch in enumerate(case.batches) if (batch.step, batch.micro) in begun}


def _run_length(case: Case, at: int) -> int:
    """Count how many batches from the divergence on equal the reference's from ``at`` on."""
    count = 0
    for step in range(case.divergence.step, case.leg.last + 1):
        head = case.leg.head(step)
        for micro in range(len(head.micros) if head is not None else 0):
            mine = batch_at(head, step, micro) if head is not None else None
            if at + count >= len(case.batches) or mine is None:
                return count
            theirs = case.batches[at + count]
            if (mine.indices, mine.samples)[mine.indices is None] != (theirs.indices, theirs.samples)[
                mine.indices is None
            ]:
                return count
            count += 1
    return count


def _overlap(case: Case, found: _Found) -> tuple[str, list[str]] | None:
    """Say how many samples are known from elsewhere in the reference; None if none are."""
    by_index = found.batch.indices is not None
    mine = found.batch.indices if by_index else found.batch.samples
    expected = found.expected.indices if by_index else found.expected.samples
    if not mine or not expected:
        return None
    known = {item for b in case.batches for item in ((b.indices if by_index else b.samples) or ())}
    here = len(set(mine) & set(expected))
    elsewhere = len(set(mine) & known)
    if not elsewhere:
        return None
    evidence = [
        f"{here} of {len(mine)} samples are those that the reference had at this step",
        f"{elsewhere} of {len(mine)} occur somewhere in the reference",
    ]
    if set(mine) == set(expected):
        return f"step {case.divergence.step} has the same samples in another order", evidence
    return f"step {case.divergence.step} draws the same dataset in another order", evidence


def _name(case: Case, position: int) -> str:
    if position >= len(case.batches):
        return "end"
    batch = case.batches[position]
    several = any(b.micro for b in case.batches)
    return f"batch {position + 1} (step {batch.step}{f', micro-step {batch.micro + 1}' if several else ''})"


def _some(indices: tuple[Sample, ...] | None) -> str:
    shown = [f"{i[1]} (epoch {i[0]})" if isinstance(i, tuple) else str(i) for i in (indices or ())[:4]]
    return ", ".join(shown) + (", …" if indices and len(indices) > 4 else "")


RULES = (data,)
