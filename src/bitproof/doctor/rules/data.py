"""Rules about data: what persistent workers do not hear of, and orders that no seed governs."""

from collections.abc import Iterator

from bitproof.doctor.catalogue import hazard
from bitproof.doctor.evidence import Evidence
from bitproof.doctor.hazard import Hazard

_TOLD = ("epoch", "seed", "stage", "phase", "step")
"""What a data set is told between epochs, and not what it counts for itself."""


def persistent_workers_epoch(evidence: Evidence) -> Iterator[Hazard]:
    """Find data sets that are told the epoch in the main process only."""
    lines: set[str | None] = set()
    for note in evidence.noted("dataset-changed"):
        names = [name for name in note.data["names"] if any(word in name.lower() for word in _TOLD)]
        if names and note.rank == 0 and note.where not in lines:
            lines.add(note.where)
            summary = f"{note.data['dataset']}.{names[0]} has changed since the persistent workers were started, which still have the old one"
            yield hazard("persistent-workers-epoch", summary, note.where)


def order_from_set(evidence: Evidence) -> Iterator[Hazard]:
    """Find orders that come from sets of strings."""
    if evidence.environment.get("env.PYTHONHASHSEED") not in {None, "", "random"}:
        return
    for source in evidence.sources:
        for node in source.orders_from_sets():
            yield hazard(
                "order-from-set", "the order of a set of strings is used, another one in every process", source.at(node)
            )


RULES = (persistent_workers_epoch, order_from_set)
