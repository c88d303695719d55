"""What the watch inside the training process writes down: one JSON document a line, a file a process."""

import os
from pathlib import Path
from typing import Any, Literal

import msgspec

_NAME = "doctor-"

NoteKind = Literal[
    "start",
    "built-unseeded",
    "variable",
    "rnn",
    "saved",
    "renamed",
    "copied",
    "generator",
    "dataset-changed",
    "worker-drew",
    "epoch-drew",
    "loader-seeded",
    "evaluation",
    "recompute",
    "no-deterministic-way",
]


class Note(msgspec.Struct, frozen=True):
    """Something that was seen.

    Args:
        kind: what.
        step: steps of this process that were complete.
        rank: of the process.
        where: the user's ``file:line``.
        data: the particulars.
    """

    kind: NoteKind
    step: int
    rank: int
    where: str | None
    data: dict[str, Any]


def write(control: Path, note: Note) -> None:
    """Add a note to this process's file: one write, so that a kill leaves a line whole or out."""
    handle = os.open(control / f"{_NAME}{os.getpid()}.jsonl", os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)
    try:
        os.write(handle, msgspec.json.encode(note) + b"\n")
    finally:
        os.close(handle)


def read(control: Path) -> list[Note]:
    """Return the notes of all processes of a leg; each process's in order."""
    decoder = msgspec.json.Decoder(Note)
    return [
        note for path in sorted(control.glob(f"{_NAME}*.jsonl")) for note in decoder.decode_lines(path.read_bytes())
    ]
