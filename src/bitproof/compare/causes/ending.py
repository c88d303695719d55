"""Rules for how much was trained, and for accumulation windows."""

from collections.abc import Iterator

from bitproof.compare.causes.case import Case
from bitproof.compare.causes.made import Made, made


def ending(case: Case) -> Iterator[Made]:
    """Find legs that together took fewer or more steps."""
    expected, taken = case.reference.last, case.leg.last
    if case.facet != "end":
        # Where the legs part before, it is what follows, or a further fault; said beside the cause.
        if case.resumed and case.leg.leg.ended == "ended" and taken != expected:
            code = "stopped-early" if taken < expected else "trained-too-long"
            evidence = [f"the reference ends at step {expected}, the resumed leg at step {taken}"]
            yield made(code, "likely", f"the legs together take {taken} steps instead of {expected}", evidence, None)
        return
    evidence = [f"the reference ends at step {expected}, the other at step {taken}"]
    if case.leg.offset:
        evidence.append(
            f"the resumed leg started at step {case.leg.offset} and took {len(case.leg.leg.steps)} steps itself"
        )
    if taken < expected:
        yield made("stopped-early", case.surest, f"{expected - taken} steps are missing at the end", evidence, None)
    else:
        yield made("trained-too-long", case.surest, f"{taken - expected} steps too many were taken", evidence, None)


def accumulation(case: Case) -> Iterator[Made]:
    """Find gradients of an open accumulation window that did not come back."""
    if not case.resumed or not case.at_seam or case.facet not in {"gradients", "loss"}:
        return
    heads = case.heads()
    if heads is None or not case.leg.micro or case.facet != "gradients":
        return
    evidence = [
        f"the seam lies inside step {case.leg.first}, after {case.leg.micro} of its {len(heads[0].micros)} backward passes",
        "batches and losses after the seam are equal, the accumulated gradients are not",
    ]
    yield made(
        "accumulation-lost", case.surest, "the gradients of the open accumulation window are gone", evidence, None
    )


RULES = (ending, accumulation)
