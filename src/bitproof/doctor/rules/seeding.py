"""Rules about how a run begins: no seed, or one that comes too late."""

from collections.abc import Iterator

from bitproof.doctor.catalogue import hazard
from bitproof.doctor.evidence import Evidence
from bitproof.doctor.hazard import Hazard
from bitproof.doctor.rules.drawing import WHOSE, behind, moved, seeded

_MODULES = {"python": "random", "numpy": "np.random"}
_NO_DRAW = (
    "seed",
    "getstate",
    "setstate",
    "get_state",
    "set_state",
    "default_rng",
    "Random",
    "RandomState",
    "Generator",
)


def not_seeded(evidence: Evidence) -> Iterator[Hazard]:
    """Find generators that are drawn from and were never seeded."""
    for leg in evidence.legs[:1]:
        known = set(seeded(leg)) | ({"torch"} if evidence.start.get("seeded") else set())
        found = {name: where for name, where in _drawn(evidence) if name not in known}
        if found:
            names = " and ".join(WHOSE[name] for name in found)
            verb, noun = ("are", "generators") if len(found) > 1 else ("is", "generator")
            where = next((where for where in found.values() if where), evidence.start.get("built"))
            yield hazard("not-seeded", f"{names} {noun} {verb} drawn from and never seeded", where)


def _drawn(evidence: Evidence) -> Iterator[tuple[str, str | None]]:
    """Yield the global generators that the run draws from, and a line that does."""
    leg = evidence.legs[0]
    before: dict[str, int] = evidence.start.get("generators", {})
    first = leg.steps[0].rng_start if leg.steps else {}
    # The seed that a loader's iterator draws is nothing by itself: the order, or a worker, must draw too.
    seeds = {note.data["before"]: note.data["after"] for note in evidence.noted("loader-seeded") if note.rank == 0}
    built = (
        not evidence.weights_loaded
        and "torch" in before
        and behind(before["torch"], seeds) != behind(first.get("torch"), seeds)
    )
    if built or moved(leg, "torch", seeds) or any(evidence.noted("epoch-drew")):
        yield "torch", None
    for name, module in _MODULES.items():
        line = _line(evidence, module)
        if moved(leg, name) or (line and name in before and name in first and before[name] != first[name]):
            yield name, line


def _line(evidence: Evidence, module: str) -> str | None:
    """Return the first line of the user's that calls a function of a random module and draws."""
    for source in evidence.sources:
        for name, call in source.calls_below(module):
            if name not in _NO_DRAW:
                return source.at(call)
    return None


def seeded_after_model(evidence: Evidence) -> Iterator[Hazard]:
    """Find a first seed that comes after the model has been built at random."""
    for note in evidence.noted("built-unseeded"):
        if note.rank == 0 and not evidence.weights_loaded:
            built = note.data.get("built")
            said = f" at {evidence.shown(built)}" if built else ""
            yield hazard(
                "seeded-after-model", f"parameters were made{said}, and torch was seeded only here", note.where
            )


RULES = (not_seeded, seeded_after_model)
