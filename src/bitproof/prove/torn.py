"""Tell from what a resumed leg read whether a half-written checkpoint misled it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bitproof.compare.causes.made import made
from bitproof.compare.verdict import Cause
from bitproof.prove.orders import Touched, as_text
from bitproof.trail.records import Event


@dataclass(frozen=True)
class Torn:
    """A file that was half written when the process died.

    Args:
        path: as text.
        output: the folder that the legs write to.
        beside: files that were written at the same step, as one checkpoint.
    """

    path: str
    output: Path
    beside: frozenset[str]


def blame(torn: Torn, events: Sequence[Event], read: Sequence[Touched]) -> list[Cause]:
    """Name the half-written file if the resumed leg read it, or its folder if it read the rest of that checkpoint.

    Args:
        torn: the file.
        events: of the resumed leg.
        read: the files that it opened for reading.
    """
    loaded = [(as_text(e.data["path"]), e.where) for e in events if e.kind == "file-loaded" and e.data.get("path")]
    loaded += [(touched.path, touched.where) for touched in read]
    half = f"{_short(torn.path, torn)} was half written when the process died"
    for path, where in loaded:
        if path == torn.path:
            summary = f"the resume read {_short(path, torn)}, which was cut off while it was written"
            return [made("torn-checkpoint", "certain", summary, [half, "the resumed leg read it"], where)]
    for path, where in loaded:
        if path in torn.beside and Path(path).parent == Path(torn.path).parent != torn.output:
            evidence = [half, f"the resumed leg read {_short(path, torn)}, of the same checkpoint"]
            summary = f"the resume chose {_short(str(Path(torn.path).parent), torn)}, which was not complete"
            return [made("incomplete-checkpoint-chosen", "certain", summary, evidence, where)]
    return []


def _short(path: str, torn: Torn) -> str:
    return str(Path(path).relative_to(torn.output)) if Path(path).is_relative_to(torn.output) else path
