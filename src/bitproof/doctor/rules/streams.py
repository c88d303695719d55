"""Rules about who draws from which stream: ranks, workers, validation, recomputed passes, generators of one's own."""

from collections.abc import Iterator

from bitproof.doctor.catalogue import hazard
from bitproof.doctor.evidence import Evidence
from bitproof.doctor.hazard import Hazard
from bitproof.doctor.notes import Note
from bitproof.doctor.rules.drawing import WHOSE, moved, moved_inside
from bitproof.trail.reader import Leg
from bitproof.trail.records import unpack_digests

_DRAWING = {"torch": ("torch.rand",), "python": ("random.",), "numpy": ("np.random.", "numpy.random.")}
_MAKERS = {
    "Generator": ("torch.Generator", "default_rng"),
    "Random": ("random.Random", "Random"),
    "RandomState": ("RandomState",),
}


def ranks_share_stream(evidence: Evidence) -> Iterator[Hazard]:
    """Find ranks that draw the same numbers for other samples."""
    if len(evidence.legs) < 2:
        return
    first, *others = evidence.legs
    for other in others:
        names = (
            [name for name in sorted(first.steps[0].rng_start) if _shared(first, other, name)] if first.steps else []
        )
        if names and (_batches_differ(first, other) or evidence.start.get("parallel")):
            where = next(
                (e.where for e in reversed(list(evidence.events("seed"))) if e.data.get("generator") == names[0]), None
            )
            summary = (
                f"ranks {first.rank} and {other.rank} draw the same numbers from {' and '.join(names)} in every step"
            )
            yield hazard("ranks-share-stream", summary, where)
            return


def _shared(one: Leg, other: Leg, name: str) -> bool:
    """Tell whether two ranks had the same states in all steps that draw from a generator."""
    steps = [i for i in moved_inside(one, name) if i < len(other.steps)]
    return bool(steps) and all(
        one.steps[i].rng_start.get(name) == other.steps[i].rng_start.get(name)
        and one.steps[i].rng_forward.get(name) == other.steps[i].rng_forward.get(name)
        for i in steps
    )


def _batches_differ(one: Leg, other: Leg) -> bool:
    return any(a.roots.get("batch") != b.roots.get("batch") for a, b in zip(one.steps, other.steps, strict=False))


def workers_share_stream(evidence: Evidence) -> Iterator[Hazard]:
    """Find generators that several workers drew from in the same state."""
    drew: dict[tuple[str, str], dict[int, Note]] = {}
    for note in evidence.noted("worker-drew"):
        if note.rank == 0:
            key = (str(note.data["dataset"]), str(note.data["name"]))
            drew.setdefault(key, {}).setdefault(int(note.data["worker"]), note)
    for (dataset, name), by_worker in drew.items():
        states = [note.data["state"] for note in by_worker.values()]
        if len(states) > len(set(states)):
            count = max(states.count(state) for state in states)
            summary = f"{count} workers draw the same numbers from {name} of {dataset}"
            yield hazard("workers-share-stream", summary, _made(evidence, next(iter(by_worker.values()))))


def generator_not_saved(evidence: Evidence) -> Iterator[Hazard]:
    """Find generators that go on from step to step and are in no checkpoint: the process's and the script's own."""
    if not evidence.saves_for_resuming or evidence.writes_state:
        return
    saved = {digest for save in evidence.saves for digest in save.leaves.digests}
    whole = {number for note in evidence.noted("saved") for number in note.data["generators"]}
    by_name: dict[str, dict[int, list[Note]]] = {}
    for note in evidence.noted("generator"):
        if note.rank == 0:
            by_name.setdefault(str(note.data["name"]), {}).setdefault(int(note.data["id"]), []).append(note)
    for name, by_object in by_name.items():
        if len(by_object) > 1:  # another object under the same name: it is made anew, from an epoch perhaps
            continue
        ((number, notes),) = by_object.items()
        shown = {digest for note in notes for digest in note.data["shown"]}
        if number in whole or saved & shown or any(note.data["keyed"] for note in notes):
            continue
        where: str | None
        if _drawn_again(evidence, name):
            continue
        if not notes[0].data["global"]:
            said, where = name, _made(evidence, notes[0])
        elif _goes_on(evidence, name):
            said, where = f"{WHOSE.get(name, name)} generator", evidence.saving_line
        else:
            continue
        yield hazard("generator-not-saved", f"{said} is drawn from in the whole run and is in no checkpoint", where)


def _goes_on(evidence: Evidence, name: str) -> bool:
    """Tell whether steps or later epochs draw from a generator of the process, which was seeded before them and not again."""
    again = any(event.step and event.data.get("generator") == name for event in evidence.events("seed", "rng-restored"))
    fetching = not any(source.skips_batches for source in evidence.sources)
    # Where a library writes the checkpoints, how it brings back the order is its own affair.
    direct = any(note.data["direct"] for note in evidence.noted("saved"))
    epochs = name == "torch" and any(note.data["again"] and note.rank == 0 for note in evidence.noted("epoch-drew"))
    return not again and (
        (epochs and fetching and direct) or bool(moved_inside(evidence.legs[0], name, fetching=fetching))
    )


def _drawn_again(evidence: Evidence, name: str) -> bool:
    """Tell whether the script, when it goes on, draws again what such a generator gave before."""
    parts = name.partition(".")[0] in {"dataset", "collate_fn", "sampler", "batch_sampler"}
    names = _DRAWING.get(name, (f"{name}.",))
    return any(source.draws_again(*names) or (parts and source.skips_batches) for source in evidence.sources)


def _made(evidence: Evidence, note: Note) -> str | None:
    """Return the line that makes such a generator, if the user's files have just one; else the line of the note."""
    makers = _MAKERS.get(str(note.data["class"]), ())
    lines = [source.at(call) for source in evidence.sources for call in source.calls(*makers)]
    return lines[0] if len(lines) == 1 else note.where


def validation_draws(evidence: Evidence) -> Iterator[Hazard]:
    """Find evaluations that draw from torch's generator, where training draws from it too."""
    for leg in evidence.legs[:1]:
        trained = {digest for head in leg.steps for micro in head.micros for digest in unpack_digests(micro.samples)}
        notes = [
            note
            for note in evidence.noted("evaluation")
            # Without a loader it may be a rollout: training goes on with the samples that it drew, if there was time to.
            if note.rank == 0
            and note.data["drew"]
            and (note.data["loader"] or (note.step < evidence.steps and not trained & set(note.data["rows"])))
        ]
        if notes and (moved_inside(leg, "torch") or _shuffled(leg)):
            summary = "validation draws from torch's generator, which training draws from too"
            yield hazard("validation-draws", summary, notes[0].where)


def _shuffled(leg: Leg) -> bool:
    """Tell whether training is shuffled from torch's own generator."""
    shuffled = any(e.kind == "loader-started" and e.data.get("sampler") == "RandomSampler" for e in leg.events)
    return shuffled and moved(leg, "torch")


def recompute_without_rng(evidence: Evidence) -> Iterator[Hazard]:
    """Find recomputed passes that draw what is not repeated."""
    lines: set[str | None] = set()
    for note in evidence.noted("recompute"):
        lost = [name for name in note.data["drew"] if name in {"python", "numpy"} or not note.data["preserve"]]
        if lost and note.where not in lines:
            lines.add(note.where)
            summary = f"this pass draws from {' and '.join(lost)}, and computing it again draws other numbers"
            yield hazard("recompute-without-rng", summary, note.where)


RULES = (
    ranks_share_stream,
    workers_share_stream,
    generator_not_saved,
    validation_draws,
    recompute_without_rng,
)
