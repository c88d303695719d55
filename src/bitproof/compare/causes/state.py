"""Rules for state that did not come back: weights, buffers, optimizer, settings, scaler, mode, what is saved."""

import re
from collections.abc import Iterator, Mapping

from bitproof.compare.causes.case import Case
from bitproof.compare.causes.made import Made, made
from bitproof.compare.divergence import apart, differing, shown
from bitproof.compare.timeline import Placed
from bitproof.trail.records import STATE_FACETS, Tensors

_AVERAGE = re.compile(
    r"(^|[._\-/])(ema|swa|avg|average|averaged|shadow|polyak|mean_model|n_averaged)([._\-/]|\d|$)", re.IGNORECASE
)
_MOMENTS = re.compile(r"(exp|square|grad)_avg(_sq)?")
"""What PyTorch's optimizers call theirs: no average of weights."""
_SCHEDULE = frozenset({"last_epoch", "_step_count", "num_bad_epochs", "cooldown_counter", "_last_lr"})
"""What PyTorch's schedulers call their counters."""
_MOST_LINES = 3
_MOST_SAVES = 20
_MOST_RATES = 1_000


def weights(case: Case) -> Iterator[Made]:
    """Find weights that differ at the seam."""
    if case.facet != "weights" or not case.resumed or not case.at_seam:
        return
    foreign = _foreign(case)
    if foreign:
        orphans = [name for name in foreign if re.fullmatch(r"[^/]+/group\d+\.\d+", name)]
        evidence = [
            f"{len(orphans)} parameters in the optimizer's groups belong to no module that is still there"
            if orphans
            else "",
            "" if orphans else f"not in the reference: {', '.join(foreign[:_MOST_LINES])}",
        ]
        summary = f"{len(foreign)} weights that are trained or updated are none of the reference's model"
        remedy = "Load into the model that the optimizer was built over; do not replace it, or build the optimizer again and load that last."
        where = case.loaded_at("module")
        yield made("weights-not-restored", case.surest, summary, [*evidence, *_also(case)], where, remedy)
        return
    evidence = [
        *lenient_loads(case.leg),
        *_how_far(case, "weights"),
        *_as_saved(case, "weights"),
        *_also(case),
    ]
    if case.joint is not None and case.joint.how == "nothing":
        evidence.insert(0, "the resumed leg's first weights are none that the reference ever had")
    summary = f"{_count(case)} weights are not those of the reference at the seam"
    yield made("weights-not-restored", case.surest, summary, evidence, case.loaded_at("module"))


def buffers(case: Case) -> Iterator[Made]:
    """Find buffers that differ at the seam."""
    if case.facet == "buffers" and case.resumed and case.at_seam:
        evidence = [
            "the weights at the seam are equal",
            *lenient_loads(case.leg),
            *_how_far(case, "buffers"),
            *_as_saved(case, "buffers"),
            *_also(case),
        ]
        summary = f"{_count(case)} buffers are not those of the reference at the seam"
        yield made("buffers-not-restored", case.surest, summary, evidence, case.loaded_at("module"))


def optimizer(case: Case) -> Iterator[Made]:
    """Find optimizer state that is empty, different, or on other parameters."""
    if case.facet != "optimizer" or not case.resumed or not case.at_seam:
        return
    sides = case.tensors("optimizer")
    where = case.loaded_at("optimizer")
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
        summary = "the optimizer's state is empty at the seam"
        yield made("optimizer-not-restored", case.surest, summary, [*evidence, *_also(case)], where)
        return
    moved = _moved(expected, found)
    if moved:
        evidence.append("; ".join(f"{a} of the reference sits on {b}" for a, b in moved[:_MOST_LINES]))
        probes = [leg.meta.get("hash_probe") for leg in (case.reference.legs[0].leg, case.leg.leg)]
        if probes[0] != probes[1]:
            evidence.append("PYTHONHASHSEED is not fixed, so a set of names comes in another order in each process")
        summary = f"the optimizer's state sits on other parameters ({len(moved)} tensors moved)"
        yield made("optimizer-misassigned", case.surest, summary, [*evidence, *_also(case)], where)
        return
    evidence += [*_how_far(case, "optimizer"), *_as_saved(case, "optimizer"), *_also(case)]
    summary = f"{_count(case)} tensors of the optimizer's state differ at the seam"
    yield made("optimizer-not-restored", case.surest, summary, evidence, where)


def hyperparameters(case: Case) -> Iterator[Made]:
    """Find settings that differ at the seam, or a rate that leaves the reference's later."""
    if case.facet != "hyperparameters" or not case.resumed:
        return
    heads = case.heads()
    rates = f"learning rate {heads[1].rate} where the reference has {heads[0].rate}" if heads else ""
    if heads and heads[0].rate == heads[1].rate:
        rates = ""
    if case.at_seam:
        evidence = [*(_how_far(case, "hyperparameters") or [rates]), *_also(case)]
        where = case.loaded_at("optimizer")
        summary = f"{rates or 'a group setting differs'} at the seam"
        yield made("hyperparameters-not-restored", case.surest, summary, evidence, where)
        return
    kept = case.divergence.step - case.leg.first
    sides = case.tensors("hyperparameters")
    if sides is not None and not any(name.endswith(".lr") for name in differing(*sides)):
        evidence = [f"the settings were equal for {kept} steps after the seam", *_how_far(case, "hyperparameters")]
        summary = f"{', '.join(case.divergence.names)} leaves the reference at step {case.divergence.step}"
        yield made("hyperparameters-not-restored", "likely", summary, evidence, None)
        return
    late = _late(case)
    loads = any(e.data.get("on") == "scheduler" for e in case.events_before("load-state-dict"))
    evidence = [
        f"the settings were equal for {kept} step{'s' if kept != 1 else ''} after the seam",
        *_how_far(case, "hyperparameters"),
        "a scheduler's state was loaded" if loads else "no scheduler's load_state_dict was called",
        f"from there on the rates are the reference's {late} step{'s' if late != 1 else ''} late" if late else "",
        *case.saved_before(),
    ]
    remedy = None
    if loads and late == 1:
        remedy = "Save the checkpoint after scheduler.step(), not between optimizer.step() and scheduler.step()."
    summary = f"the rate is right at the seam and parts at step {case.divergence.step}: {rates or 'a setting differs'}"
    where = case.loaded_at("scheduler")
    yield made("schedule-restarted", case.surest, summary, evidence, where, remedy)


def scaler(case: Case) -> Iterator[Made]:
    """Find a gradient scaler whose scale or counter differs."""
    if case.facet == "scaler" and case.resumed:
        loads = any(e.data.get("on") == "scaler" for e in case.events_before("load-state-dict"))
        evidence = [*_how_far(case, "scaler"), "" if loads else "no scaler's load_state_dict was called"]
        summary = f"the gradient scaler's state differs at step {case.divergence.step}"
        yield made("scaler-not-restored", case.surest, summary, evidence, case.loaded_at("scaler"))


def mode(case: Case) -> Iterator[Made]:
    """Find modules in another train/eval mode."""
    if case.facet == "mode" and case.resumed:
        sides = case.tensors("mode")
        modes = [side.by_name() for side in sides] if sides else []
        evidence = [
            f"{_module(name)} is in {_MODES.get(modes[1][name][1])} mode where the reference is in {_MODES.get(modes[0][name][1])} mode"
            for name in (differing(*sides) if sides else ())
            if all(name in side for side in modes)
        ]
        names = ", ".join(name or "the whole model" for name in case.divergence.names)
        summary = f"{case.divergence.differing} of {case.divergence.of} modules train in another mode: {names}"
        yield made("mode-not-restored", case.surest, summary, evidence[:_MOST_LINES], None)


_MODES = {2: "train", 1: "eval"}


def saved(case: Case) -> Iterator[Made]:
    """Find what is saved and came back different although training is equal."""
    if case.facet != "saved" or not case.resumed:
        return
    names = case.saved_names or tuple(case.divergence.names)
    averages = [name for name in names if _is_average(name)]
    counters = [name for name in names if name.rsplit(".", 1)[-1] in _SCHEDULE]
    first = averages or counters or list(names)
    others = [name for name in names if name not in first]
    evidence = [
        f"every step up to {case.divergence.step} is equal, and what is saved after it is not",
        f"different: {', '.join(first[:5])} ({case.divergence.differing} of {case.divergence.of} entries)",
        *case.saved_apart[:_MOST_LINES],
        f"also different: {', '.join(others[:5])}" if others else "",
    ]
    if averages:
        summary = f"averaged weights came back different: {first[0]}"
        yield made("average-not-restored", case.surest, summary, evidence, None)
    elif counters:
        summary = f"the schedule's counter started again: {first[0]}; the rate has not parted yet"
        yield made("schedule-restarted", case.surest, summary, evidence, case.loaded_at("scheduler"))
    else:
        summary = f"something that is saved came back different: {first[0]}; training is equal all the same"
        yield made("other-state-not-restored", case.surest, summary, evidence, None)


def _count(case: Case) -> str:
    return f"{case.divergence.differing} of {case.divergence.of}"


def _foreign(case: Case) -> list[str]:
    sides = case.tensors("weights")
    return sorted(set(sides[1].names) - set(sides[0].names)) if sides is not None else []


def lenient_loads(leg: Placed) -> Iterator[str]:
    """Say which keys were passed over when a module's state was loaded before the leg's first step."""
    for event in leg.leg.events:
        if event.kind != "load-state-dict" or event.step:
            continue
        missing, extra = event.data.get("missing_keys_count", 0), event.data.get("unexpected_keys_count", 0)
        if event.data.get("on") == "module" and (missing or extra):
            example = (event.data.get("unexpected_keys") or event.data.get("missing_keys") or ["?"])[0]
            yield f"load_state_dict(strict=False) passed over {missing} missing and {extra} unexpected keys, such as {example}"


def _how_far(case: Case, facet: str) -> list[str]:
    sides = case.tensors(facet)
    return apart(*sides, most=_MOST_LINES) if sides is not None else []


def _also(case: Case) -> list[str]:
    """Name what else differs at the step: one load that is missing often explains several facets."""
    heads = case.heads()
    if heads is None:
        return []
    others = [
        facet
        for facet in STATE_FACETS
        if facet != case.facet
        and heads[0].roots.get(facet) != heads[1].roots.get(facet)
        and all(facet in h.roots for h in heads)
    ]
    return [f"also different there: {', '.join(others)}"] if others else []


def _as_saved(case: Case, facet: str) -> Iterator[str]:
    """Say what of a facet was saved in another dtype, or under another name."""
    sides = case.tensors(facet)
    leaves = case.saved_leaves(_MOST_SAVES)
    if sides is None or not leaves:
        return
    left, right = (side.by_name() for side in sides)
    names = [name for name in differing(*sides) if name in left and name in right]
    step, latest = leaves[-1]
    for name in names:
        entry = _entry_of(name, facet, left[name][0], latest)
        if entry is not None and _dtype(entry[1]) != _dtype(left[name][0]):
            short = shown([name])[0]
            yield f"{short} was saved as {_dtype(entry[1])} after step {step}, and the reference trains it as {_dtype(left[name][0])}"
            return
    for name in names:
        for at, entries in reversed(leaves):
            same = next((n for n, (kind, digest) in entries.items() if (kind, digest) == right[name][:2]), None)
            if same is not None:
                if (at, facet) != (step, "weights") or not same.endswith(shown([name])[0]) or _is_average(same):
                    yield f"{shown([name])[0]} equals what was saved as {same} after step {at}"
                return


def _entry_of(name: str, facet: str, kind: str, entries: Mapping[str, tuple[str, int]]) -> tuple[str, str] | None:
    """Return (name, kind) of a saved entry of a tensor; an optimizer's are numbered, so any of the same key will do."""
    short = shown([name])[0]
    ending = "." + (short.rsplit(".", 1)[-1] if facet == "optimizer" else short)
    for saved_name, (saved_kind, _) in entries.items():
        fits = ("." + saved_name).endswith(ending) and not _is_average(saved_name)
        if fits and saved_kind.partition("[")[2] == kind.partition("[")[2] != "]":
            return saved_name, saved_kind
    return None


def _is_average(name: str) -> bool:
    return _AVERAGE.search(_MOMENTS.sub("", name)) is not None


def _dtype(kind: str) -> str:
    return kind.partition("[")[0]


def _module(name: str) -> str:
    return shown([name])[0] or "the whole model"


def _late(case: Case) -> int | None:
    """Return by how many steps the leg's rates lag behind the reference's from the divergence on; None if they do not."""
    first = case.divergence.step
    last = min(case.leg.last, case.reference.last, first + _MOST_RATES)
    rates = {s: (head.rate if (head := case.reference.head(s)) is not None else None) for s in range(1, last + 1)}
    mine = {s: (head.rate if (head := case.leg.head(s)) is not None else None) for s in range(first, last + 1)}
    for lag in range(1, min(first, _MOST_RATES)):
        if all(mine[s] == rates[s - lag] for s in mine):
            return lag
    return None


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


RULES = (weights, buffers, optimizer, hyperparameters, scaler, mode, saved)
