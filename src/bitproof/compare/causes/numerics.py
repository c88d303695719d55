"""Rules for equal inputs that gave other outputs, and for other settings."""

from collections.abc import Iterator

from bitproof.compare.causes.case import ARITHMETIC, Case
from bitproof.compare.causes.made import Made, made
from bitproof.compare.causes.randomness import drawn, drawn_for, findings
from bitproof.compare.divergence import apart
from bitproof.compare.verdict import Confidence
from bitproof.environment import Difference

_WORK = frozenset({"loss", "gradients"})
_ARITHMETIC = _WORK | {"buffers", "weights", "optimizer"}
_SEEDS = ("seed.",)
_ORDER = ("env.PYTHONHASHSEED", "python.hash")


def environment(case: Case) -> Iterator[Made]:
    """Name settings that differ and can change what differs first."""
    seeds = [d for d in case.environment if d.key.startswith(_SEEDS)]
    bits = [d for d in case.environment if d.key.startswith(ARITHMETIC)]
    workers = [d for d in case.environment if d.key.startswith("loader.")]
    order = [d for d in case.environment if d.key.startswith(_ORDER)]
    rest = [d for d in case.environment if d not in [*seeds, *bits, *workers, *order]]
    if seeds and not case.resumed and _random_first(case):
        yield _changed(seeds, "certain", "the runs were seeded differently", "Give both runs the same seed.")
    elif workers and case.facet == "batch":
        yield _changed(workers, "likely", "the data loader runs with other settings")
    if bits and case.facet in _ARITHMETIC and not (seeds and not case.resumed):
        alone = not _generators_differ(case) and not (case.resumed and case.at_seam and case.facet not in _WORK)
        confidence: Confidence = "possible"
        if alone:
            confidence = "certain" if case.controlled and case.facet in _WORK else "likely"
        yield _changed(bits, confidence, "settings that change arithmetic differ")
    if order and case.facet in {"batch", "weights"} and not seeds:
        yield _changed(order, "likely", "the order of sets and dicts of strings differs from process to process")
    if rest and not (seeds or bits or workers or order):
        yield _changed(rest, "possible", "the environments differ")


def settings(case: Case) -> Iterator[Made]:
    """Name what two runs were set up with differently, where neither continues another."""
    if case.resumed or case.facet not in {"hyperparameters", "scaler", "mode"}:
        return
    sides = case.tensors(case.facet)
    evidence = apart(*sides, most=4) if sides else []
    evidence = evidence or [f"different: {', '.join(case.divergence.names)}"]
    names = ", ".join(case.divergence.names[:3]) or "the model"
    if case.divergence.step == 1:
        summary = f"the runs are set up with another {case.facet.removesuffix('s')}: {names}"
        yield made("environment-changed", "certain", summary, evidence, None)
    else:
        # A schedule may follow a metric, and the scaler follows overflows: what led there was not seen.
        summary = f"the {case.facet} part at step {case.divergence.step}, with everything before that equal: {names}"
        yield made("environment-changed", "possible", summary, evidence, None)


def hash_order(case: Case) -> Iterator[Made]:
    """Suspect the order of sets, where an unseeded hash is the only thing that can differ."""
    if case.settings_differ or case.facet not in {"batch", "optimizer", "weights", "gradients"} or case.resumed:
        return
    one = case.reference.legs[0].leg
    probes = one.meta.get("hash_probe"), case.leg.leg.meta.get("hash_probe")
    if probes[0] != probes[1] and case.facet == "batch" and not _generators_differ(case):
        evidence = ["PYTHONHASHSEED is not set, so sets and directory listings come in another order in each process"]
        yield made("environment-changed", "possible", "the order of a set may decide the data", evidence, None)


def recompute(case: Case) -> Iterator[Made]:
    """Suspect recomputation under activation checkpointing, where only the gradients differ."""
    if case.facet != "gradients":
        return
    events = [[e for _, e in side.events("recompute")] for side in (case.reference, case.leg)]
    if not any(events):
        return
    kept = [{e.data.get("preserve_rng_state") for e in side} for side in events]
    evidence = ["the loss is equal and the gradients differ", "activation checkpointing recomputes the forward pass"]
    if kept[0] != kept[1]:
        evidence.append(f"preserve_rng_state is {_flags(kept[0])} in the reference and {_flags(kept[1])} in the other")
    elif False in kept[0]:
        evidence.append("preserve_rng_state is False")
    where = next((e.where for side in reversed(events) for e in side), None)
    sure: Confidence = "certain" if kept[0] != kept[1] or False in kept[0] else "likely"
    yield made("recompute-changed", sure, "the recomputed forward pass was another one", evidence, where)


def nondeterministic(case: Case) -> Iterator[Made]:
    """Suspect an operation, where equal inputs gave other outputs and nothing else explains it."""
    if case.facet not in {"loss", "gradients", "weights", "buffers", "optimizer"} or case.settings_differ:
        return
    if case.resumed and (case.controlled or (case.at_seam and case.facet not in {"loss", "gradients"})):
        return  # the command repeats bit for bit, so this is nothing that changes from run to run
    if _generators_differ(case) or (case.facet == "gradients" and case.leg.micro and case.at_seam):
        return
    if case.facet == "gradients" and any(True for side in (case.reference, case.leg) for _ in side.events("recompute")):
        return
    if case.divergence.step == 1 and case.facet == "weights":
        return
    threads = case.reference.environment.get("torch.threads")
    flag = case.reference.environment.get("torch.deterministic")
    evidence = [
        f"weights, batch and generators are equal at step {case.divergence.step}, and the {case.facet} {'differs' if case.facet == 'loss' else 'differ'}",
        f"{threads} threads, deterministic algorithms {'on' if flag else 'off'}",
    ]
    yield made(
        "nondeterministic-op",
        "possible",
        "equal inputs gave other outputs: an order of addition may change",
        evidence,
        None,
    )
    yield made(
        "uninitialized-memory",
        "possible",
        "equal inputs gave other outputs: unwritten memory may be read",
        evidence[:1],
        None,
    )


def unseeded(case: Case) -> Iterator[Made]:
    """Find a run that was never seeded, where two fresh runs differ in what a generator gives."""
    if case.resumed or not _random_first(case) or any(d.key.startswith(_SEEDS) for d in case.environment):
        return
    if not (case.reference.legs[0].leg.meta.get("from_start", True) and case.leg.leg.meta.get("from_start", True)):
        return  # what was seeded before the recorder came was not seen
    seeded = {str(e.data.get("generator")) for _, e in case.reference.events("seed") if e.step == 0}
    if "torch" in seeded and case.facet == "weights":
        return
    found = [f.generator for f in findings(case.reference, case.leg, case.divergence.step) if f.generator not in seeded]
    loose = [name for name in found if case.facet == "weights" or drawn(case.reference, case.leg, name)]
    if loose:
        names = " and ".join(loose)
        evidence = [f"{names}: no seeding call before the first step", "the states differ in the two runs"]
        remedy = (
            "Seed every generator that is drawn from at the start: torch.manual_seed, random.seed, numpy.random.seed."
        )
        yield made(
            "rng-not-restored",
            "certain" if "torch" in loose else "likely",
            f"the generator{'s' if len(loose) > 1 else ''} of {names} {'were' if len(loose) > 1 else 'was'} never seeded",
            evidence,
            None,
            remedy,
        )


def _changed(differences: list[Difference], confidence: Confidence, summary: str, remedy: str | None = None) -> Made:
    evidence = [f"{d.key}: {d.reference!r} in the reference, {d.other!r} in the other" for d in differences[:4]]
    keys = ", ".join(d.key for d in differences[:3])
    return made("environment-changed", confidence, f"{summary}: {keys}", evidence, None, remedy)


def _random_first(case: Case) -> bool:
    return case.facet in {"weights", "batch", "loss", "buffers", "gradients"}


def _generators_differ(case: Case) -> bool:
    found = findings(case.reference, case.leg, case.divergence.step)
    return any(drawn_for(case, f) for f in found)


def _flags(values: set[object]) -> str:
    return " and ".join(sorted(str(v) for v in values)) or "not used"


RULES = (environment, settings, hash_order, unseeded, recompute, nondeterministic)
