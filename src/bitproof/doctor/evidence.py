"""What the rules look at, as plain data: the environment, the trail, the watch's notes, the user's files."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from bitproof.doctor.notes import Note, NoteKind
from bitproof.doctor.sources import Source
from bitproof.trail.reader import Leg
from bitproof.trail.records import Event, EventKind, Tensors

_OPTIMIZER = "param_groups"


def relative(where: str | None) -> str | None:
    """Return ``file:line`` with the file relative to the current folder, if it lies below it."""
    if where is None:
        return None
    here = f"{Path.cwd()}/"
    return where.removeprefix(here)


@dataclass(frozen=True)
class Saved:
    """One tree that was given to a writer: names and kinds (``float32[64, 10]``) of its leaves."""

    step: int
    path: str | None
    writer: str
    leaves: Tensors

    def holds(self, part: str) -> bool:
        """Tell whether a leaf has this part in its dotted name."""
        return any(part in name.split(".") for name in self.leaves.names)

    @property
    def for_resuming(self) -> bool:
        """Whether an optimizer's state is in it, so that a resume is what it is for."""
        return self.holds(_OPTIMIZER)


@dataclass(frozen=True)
class Evidence:
    """Everything that is known.

    Args:
        environment: of the training process; of this one if no command was run.
        legs: one process a rank, by rank; none if no command was run.
        notes: of the watch, in the training processes and their workers.
        sources: the user's files that the training process had imported.
    """

    environment: Mapping[str, Any]
    legs: Sequence[Leg] = ()
    notes: Sequence[Note] = ()
    sources: Sequence[Source] = field(default=(), repr=False)

    @property
    def steps(self) -> int:
        """Steps that were seen."""
        return min((len(leg.steps) for leg in self.legs), default=0)

    @property
    def start(self) -> Mapping[str, Any]:
        """How rank 0 began; empty if it took no step."""
        return next((note.data for note in self.noted("start") if note.rank == 0), {})

    def shown(self, where: str | None) -> str:
        """Return a line as it is shown: relative to the current folder where it lies below it."""
        return relative(where) or "a line that is not known"

    def noted(self, kind: NoteKind) -> Iterator[Note]:
        """Yield the notes of a kind."""
        return (note for note in self.notes if note.kind == kind)

    def events(self, *kinds: EventKind) -> Iterator[Event]:
        """Yield rank 0's events of some kinds, in order."""
        return (event for leg in self.legs[:1] for event in leg.events if event.kind in kinds)

    @property
    def weights_loaded(self) -> bool:
        """Whether weights, or a file that may hold them, were loaded before the first step."""
        return any(
            event.step == 0 and (event.kind == "file-loaded" or event.data.get("on") == "module")
            for event in self.events("file-loaded", "load-state-dict")
        )

    @cached_property
    def saves(self) -> tuple[Saved, ...]:
        """What was saved, by any rank."""
        return tuple(
            Saved(event.step, event.data.get("path"), str(event.data.get("writer")), leg.tensors(event.saved))
            for leg in self.legs
            for event in leg.events
            if event.kind == "file-saved" and event.saved is not None
        )

    @property
    def writes_state(self) -> bool:
        """Whether the script puts states into files of its own kind, which nobody looks into."""
        return any(source.writes_state for source in self.sources)

    @property
    def saves_for_resuming(self) -> bool:
        """Whether checkpoints from which training could go on were written."""
        return any(saved.for_resuming for saved in self.saves)

    @property
    def saving_line(self) -> str | None:
        """The user's line that writes checkpoints for resuming, or that lets a library do it."""
        paths = {saved.path for saved in self.saves if saved.for_resuming}
        return next((event.where for event in self.events("file-saved") if event.data.get("path") in paths), None)
