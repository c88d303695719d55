"""What the parts of the watch share: the step, the generators, and where notes go."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from bitproof.doctor.notes import Note, NoteKind, write
from bitproof.trail.generators import Generators
from bitproof.trail.recorder import Recorder
from bitproof.trail.site import user_line

if TYPE_CHECKING:
    from collections.abc import Callable


class Watch:
    """Notes what is seen, and lets parts act at each step's end.

    Args:
        recorder: of this process.
        control: folder for the notes.
    """

    def __init__(self, recorder: Recorder, control: Path) -> None:
        self.recorder = recorder
        self.on_step: list[Callable[[int], None]] = []
        """Called after each update with the number of steps that are complete."""
        self.on_save: list[Callable[[], None]] = []
        """Called before something is saved."""
        self._control = control
        self._said: set[Any] = set()
        self._generators = Generators(_keep_nothing)
        self.initial = self.generators()
        """The generators when the watch began."""
        self.initial_seed = torch.initial_seed()
        then = recorder.on_boundary

        def boundary(step: int, micro: int, updates: int) -> None:
            if micro == 0:
                for act in tuple(self.on_step):
                    act(step)
            if then is not None:
                then(step, micro, updates)

        recorder.on_boundary = boundary

    @property
    def step(self) -> int:
        """Steps of this process that are complete."""
        return self.recorder.step

    def generators(self) -> dict[str, int]:
        """Return the digest of each global generator, drawing from none."""
        return self._generators.read()

    def say(self, kind: NoteKind, data: dict[str, Any], where: str | None = None) -> None:
        """Write a note; ``where`` is the user's line that is running, if it is not given."""
        rank = int(os.environ.get("RANK", "0"))
        write(self._control, Note(kind, self.step, rank, where or user_line(), data))

    def say_once(self, kind: NoteKind, data: dict[str, Any], where: str | None = None) -> None:
        """Write a note unless the same was said for the same line."""
        where = where or user_line()
        key = (kind, where, repr(data))
        if key not in self._said:
            self._said.add(key)
            self.say(kind, data, where)


def _keep_nothing(_name: str, _digest: int, _state: bytes) -> None:
    """Let the states go: their digests are enough here."""
