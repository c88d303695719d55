"""Rules about checkpoints: how they are written, and what is not in them."""

import re
from collections.abc import Iterator

from bitproof.doctor.catalogue import hazard
from bitproof.doctor.evidence import Evidence, Saved
from bitproof.doctor.hazard import Hazard

_KIND = re.compile(r"(\w+)(\[.*?\])")
_FULL = frozenset({"float32", "f32", "float64", "f64"})
_HALF = frozenset({"float16", "f16", "bfloat16", "bf16"})


def checkpoint_in_place(evidence: Evidence) -> Iterator[Hazard]:
    """Find a checkpoint that is written over the one before it."""
    renamed = {str(note.data["path"]) for note in evidence.noted("renamed")}
    direct = {note.data["path"]: note for note in evidence.noted("saved") if note.data["direct"]}
    copied = {(str(note.data["path"]), note.step) for note in evidence.noted("copied")}
    last: dict[str, int] = {}
    reported = set()
    saves = [saved for saved in evidence.saves if saved.path is not None]
    for i, saved in enumerate(saves):
        path = str(saved.path)
        note = direct.get(path)
        if note is None or path in reported or any(path == r or path.startswith(f"{r}/") for r in renamed):
            continue
        if path in last and saved.for_resuming:
            between = saves[last[path] + 1 : i]
            steps = range(saves[last[path]].step, saved.step + 1)
            kept = any(b.leaves.names == saved.leaves.names for b in between) or any((path, s) in copied for s in steps)
            if len(steps) > 1 and not kept:
                reported.add(path)
                name = path.rpartition("/")[2]
                yield hazard(
                    "checkpoint-in-place",
                    f"{name} is written over itself: a crash while it is written leaves none",
                    note.where,
                )
        last[path] = i


def checkpoint_half_precision(evidence: Evidence) -> Iterator[Hazard]:
    """Find weights that are trained in float32 and saved in half of it."""
    if evidence.writes_state:
        return
    weights = _weights(evidence)
    full: set[str] = set()
    half: dict[str, tuple[Saved, str]] = {}
    counted: dict[tuple[str, ...], int] = {}
    for saved in evidence.saves:
        counted[saved.leaves.names] = counted.get(saved.leaves.names, 0) + 1
        for name, kind in zip(saved.leaves.names, saved.leaves.kinds, strict=True):
            match = _KIND.match(kind)
            own = next((w for w in _endings(name) if w in weights), None)
            if match is None or own is None or match[2].replace(" ", "") != weights[own]:
                continue
            if match[1].lower() in _FULL:
                full.add(own)
            elif match[1].lower() in _HALF:
                half.setdefault(own, (saved, match[1]))
    lost = {name: found for name, found in half.items() if name not in full}
    if lost:
        saved, dtype = next(iter(lost.values()))
        if saved.for_resuming or counted[saved.leaves.names] > 1:
            note = _note_of(evidence, saved.path)
            summary = f"{len(lost)} of {len(weights)} weights are trained in float32 and saved in {dtype.lower()}"
            yield hazard("checkpoint-half-precision", summary, note)


def _weights(evidence: Evidence) -> dict[str, str]:
    """Return the float32 weights of the first step: name without the model's own, and shape."""
    found = {}
    for leg in evidence.legs[:1]:
        detail = leg.detail(1) if leg.steps else None
        tensors = detail.facets.get("weights") if detail is not None else None
        for name, kind in zip(tensors.names, tensors.kinds, strict=True) if tensors is not None else ():
            match = _KIND.match(kind)
            if match is not None and match[1] == "float32":
                found[name.partition("/")[2]] = match[2].replace(" ", "")
    return found


def _endings(name: str) -> Iterator[str]:
    """Yield a dotted name, and what is left of it without its first parts."""
    while name:
        yield name
        name = name.partition(".")[2]


def _note_of(evidence: Evidence, path: str | None) -> str | None:
    """Return the user's line that saved to a path."""
    for event in evidence.events("file-saved"):
        if event.data.get("path") == path:
            return event.where
    return None


def scheduler_not_saved(evidence: Evidence) -> Iterator[Hazard]:
    """Find a schedule that is in no checkpoint and that the script does not rebuild."""
    yield from _not_saved(evidence, "scheduler-not-saved", "schedulers", ("last_epoch", "_step_count"))


def scaler_not_saved(evidence: Evidence) -> Iterator[Hazard]:
    """Find a gradient scaler that is in no checkpoint."""
    yield from _not_saved(evidence, "scaler-not-saved", "scalers", ("_growth_tracker", "growth_tracker"))


def _not_saved(evidence: Evidence, code: str, made: str, signs: tuple[str, ...]) -> Iterator[Hazard]:
    notes = [note for note in evidence.noted("saved") if note.rank == 0]
    in_use = [where for note in notes for where in note.data[made]]
    if (
        not in_use
        or not evidence.saves_for_resuming
        or evidence.writes_state
        or any(made in note.data["whole"] for note in notes)
    ):
        return
    if any(saved.holds(sign) for saved in evidence.saves for sign in signs):
        return
    if made == "schedulers" and any(source.rebuilds_schedule for source in evidence.sources):
        return
    thing = {"schedulers": "the scheduler", "scalers": "the gradient scaler"}[made]
    saving = evidence.saving_line
    said = f"; checkpoints are written at {evidence.shown(saving)}" if saving else ""
    yield hazard(code, f"{thing} made here is in no checkpoint{said}", in_use[0] or saving)


RULES = (
    checkpoint_in_place,
    checkpoint_half_precision,
    scheduler_not_saved,
    scaler_not_saved,
)
