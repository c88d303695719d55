"""Rules for state that did not come back: weights, buffers, optimizer, settings, scaler, mode, what is saved."""

import re
from collections.abc import Iterator

from bitproof.compare.causes.case import Case
from bitproof.compare.causes.made import Made, made
from bitproof.compare.distance import describe
from bitproof.compare.divergence import differing, shown
from bitproof.trail.records import Tensors

_AVERAGE = re.compile(
    r"(^|[._\-/])(ema|swa|avg|average|averaged|shadow|polyak|mean_model|n_averaged)([._\-/]|\d|$)", re.IGNORECASE
)


def weights(case: Case) -> Iterator[Made]:
    """Find weights that differ at the seam."""
    if case.facet != "weights" or not case.resumed or not case.at_seam:
        return
    evidence = [*_lenient_loads(case), *_how_far(case, "weights")]
    if case.joint is not None and case.joint.how == "nothing":
        evidence.insert(0, "the resumed leg's first weights are none that the reference ever had")
    summary = f"{_count(case)} weights are not those of the reference at the seam"
    yield made("weights-not-restored", case.surest, summary, evidence, case.where("load-state-dict", on="module"))


def buffers(case: Case) -> Iterator[Made]:
    """Find buffers that differ at the seam."""
    if case.facet == "buffers" and case.resumed and case.at_seam:
        evidence = ["the weights at the seam are equal", *_how_far(case, "buffers")]
        summary = f"{_count(case)} buffers are not those of the reference at the seam"
        yield made("buffers-not-restored", case.surest, summary, evidence, case.where("load-state-dict", on="module"))


def optimizer(case: Case) -> Iterator[Made]:
    """Find optimizer state that is empty, different, or on other parameters."""
    if case.facet != "optimizer" or not case.resumed or not case.at_seam:
        return
    sides = case.tensors("optimizer")
    where = case.where("load-state-dict", on="optimizer")
    loads = case.events_before("load-state-dict")
    never = not any(event.data.get("on") == "optimizer" for event in loads)
    evidence = ["the weights at the seam are equal"]
    if never:
        evidence.append("no optimizer's load_state_dict was called")
    if sides is None:
        yield made("optimizer-not-restored", case.surest, "the optimizer's state differs at the seam", evidence, where)
        return
    expected, found = sides
    if not found.names and expected.names:
        evidence.append(f"the optimizer has no state where the reference has {len(expected.names)} tensors")
        yield made("optimizer-not-restored", case.surest, "the optimizer's state is empty at the seam", evidence, where)
        return
    moved = _moved(expected, found)
    if moved:
        evidence.append("; ".join(f"{a} of the reference sits on {b}" for a, b in moved[:3]))
        summary = f"the optimizer's state sits on other parameters ({len(moved)} tensors moved)"
        yield made("optimizer-misassigned", case.surest, summary, evidence, where)
        return
    evidence += _how_far(case, "optimizer")
    summary = f"{_count(case)} tensors of the optimizer's state differ at the seam"
    yield made("optimizer-not-restored", case.surest, summary, evidence, where)


def hyperparameters(case: Case) -> Iterator[Made]:
    """Find settings that differ at the seam, or a rate that leaves the reference's later."""
    if case.facet != "hyperparameters" or not case.resumed:
        return
    sides = case.tensors("hyperparameters")
    names = shown(differing(*sides)) if sides else []
    heads = case.heads()
    rates = f"learning rate {heads[1].rate} where the reference has {heads[0].rate}" if heads else ""
    if case.at_seam:
        evidence = [f"different: {', '.join(names)}" if names else "a setting differs", rates]
        where = case.where("load-state-dict", on="optimizer")
        summary = f"{rates or 'a group setting differs'} at the seam"
        yield made("hyperparameters-not-restored", case.surest, summary, evidence, where)
        return
    kept = case.divergence.step - case.leg.first
    evidence = [
        f"the settings were equal for {kept} step{'s' if kept != 1 else ''} after the seam, then parted: {rates}",
        _schedule_evidence(case),
        *_saved_before(case),
    ]
    summary = f"the rate is right at the seam and parts at step {case.divergence.step}: {rates}"
    yield made("schedule-restarted", case.surest, summary, evidence, case.where("load-state-dict", on="scheduler"))


def scaler(case: Case) -> Iterator[Made]:
    """Find a gradient scaler whose scale or counter differs."""
    if case.facet == "scaler" and case.resumed:
        loads = any(e.data.get("on") == "scaler" for e in case.events_before("load-state-dict"))
        evidence = [f"different: {', '.join(case.divergence.names) or 'the state'}"]
        if not loads:
            evidence.append("no scaler's load_state_dict was called")
        summary = f"the gradient scaler's state differs at step {case.divergence.step}"
        yield made("scaler-not-restored", case.surest, summary, evidence, case.where("load-state-dict", on="scaler"))


def mode(case: Case) -> Iterator[Made]:
    """Find modules in another train/eval mode."""
    if case.facet == "mode" and case.resumed:
        names = ", ".join(name or "the whole model" for name in case.divergence.names)
        summary = f"{case.divergence.differing} of {case.divergence.of} modules train in another mode: {names}"
        yield made("mode-not-restored", case.surest, summary, [f"train/eval mode differs: {names}"], None)


def saved(case: Case) -> Iterator[Made]:
    """Find what is saved and came back different although training is equal."""
    if case.facet != "saved" or not case.resumed:
        return
    names = case.divergence.names
    averages = [name for name in names if _AVERAGE.search(name)]
    code = "average-not-restored" if averages else "other-state-not-restored"
    evidence = [
        f"every step up to {case.divergence.step} is equal, and what is saved after it is not",
        f"different: {', '.join(averages or names)} ({case.divergence.differing} of {case.divergence.of} entries)",
    ]
    what = "averaged weights" if averages else "something that training does not read"
    summary = f"{what} came back different: {(averages or names)[0]}"
    yield made(code, case.surest, summary, evidence, None)


def _count(case: Case) -> str:
    return f"{case.divergence.differing} of {case.divergence.of}"


def _lenient_loads(case: Case) -> Iterator[str]:
    for event in case.events_before("load-state-dict"):
        missing, extra = event.data.get("missing_keys_count", 0), event.data.get("unexpected_keys_count", 0)
        if event.data.get("on") == "module" and (missing or extra):
            example = (event.data.get("unexpected_keys") or event.data.get("missing_keys") or ["?"])[0]
            yield f"load_state_dict(strict=False) passed over {missing} missing and {extra} unexpected keys, such as {example}"


def _how_far(case: Case, facet: str) -> list[str]:
    sides = case.tensors(facet)
    if sides is None:
        return []
    left, right = (side.by_name() for side in sides)
    found = []
    for name in differing(*sides):
        if name not in left or name not in right:
            found.append(f"{shown([name])[0]} is there in only one of the legs")
        elif left[name][0] != right[name][0]:
            found.append(f"{shown([name])[0]} is {right[name][0]} where the reference has {left[name][0]}")
        else:
            apart = describe(left[name][0], left[name][2], right[name][2])
            if apart:
                found.append(f"{shown([name])[0]}: {apart}")
        if len(found) == 3:
            break
    return found


def _moved(expected: Tensors, found: Tensors) -> list[tuple[str, str]]:
    """Return (name in the reference, name in the leg) of tensors that are equal but sit elsewhere."""
    left, right = expected.by_name(), found.by_name()
    counts: dict[int, int] = {}
    for digest in (*expected.digests, *found.digests):
        counts[digest] = counts.get(digest, 0) + 1
    # A digest that occurs once on each side cannot be a coincidence of equal small values, such as step counters.
    home = {digest: name for name, (_, digest, _) in left.items() if counts[digest] == 2}
    moved = [
        (shown([home[digest]])[0], shown([name])[0])
        for name, (_, digest, _) in sorted(right.items())
        if digest in home and home[digest] != name
    ]
    unlike = len(differing(expected, found))
    return moved if unlike and len(moved) * 2 >= unlike else []


def _saved_before(case: Case) -> list[str]:
    if case.saved is None:
        return []
    return [f"what was saved after step {case.saved.step} differed already: {', '.join(case.saved.names[:3])}"]


def _schedule_evidence(case: Case) -> str:
    loads = any(e.data.get("on") == "scheduler" for e in case.events_before("load-state-dict"))
    return "a scheduler's state was loaded" if loads else "no scheduler's load_state_dict was called"


RULES = (weights, buffers, optimizer, hyperparameters, scaler, mode, saved)
