"""What ``prove`` tells the agent inside the training process, and what the agent writes down for it."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

import msgspec

TOUCHED = "touched"
"""Below the control folder: the files that a leg wrote or read, as JSON, a line each."""

STEPS_AFTER_SIGNAL = 3
"""A process that goes on after a signal takes this many more steps, and is killed then."""

Writer = Literal["torch.save", "safetensors", "open", "bitproof.Run"]
COVERED = (
    "torch.save, safetensors (with its own temporary file), bitproof.Run, open() for writing (numpy.save, json, pickle "
    "and more)"
)
"""The writers that can be stopped in the middle of a file."""


class Orders(msgspec.Struct):
    """What the agent is told, as JSON in the environment.

    Args:
        control: folder through which it answers.
        step: cut off after this step of the run, or inside it if ``micro`` is given; None for no such fault.
        micro: after this backward pass of the step.
        updates: optimizer calls that make up the step.
        rank: whose turn it is.
        stop_after: end, undamaged, after this step of the run.
        states: file with the steps at which the reference had which state; for resumed legs.
        not_after: step at which the previous leg was cut off.
        checkpoint: step of the run at which the latest checkpoint was written; counts if the state is not found.
        write: leave the n-th file that is written below ``outputs`` half written.
        outputs: folders whose files count.
        watch_reads: write down what is read below ``outputs`` too.
        patient: wait to be signalled, then go on; else wait to be killed.
    """

    control: str = ""
    step: int | None = None
    micro: int = 0
    updates: int = 1
    rank: int = 0
    stop_after: int | None = None
    states: str | None = None
    not_after: int = 0
    checkpoint: int = 0
    write: int | None = None
    outputs: list[str] = []
    watch_reads: bool = False
    patient: bool = False


class Touched(msgspec.Struct, frozen=True):
    """A file that a leg wrote or read below its output folders.

    Args:
        path: as text; bytes that are not UTF-8 are escaped.
        step: steps of the run that were complete.
        writer: None if it was read.
        where: the user's file and line, for one that was read.
    """

    path: str
    step: int
    writer: Writer | None = None
    where: str | None = None


def note_touched(control: Path, touched: Touched) -> None:
    """Add a line to the list of files."""
    handle = os.open(control / TOUCHED, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)
    try:
        os.write(handle, msgspec.json.encode(touched) + b"\n")
    finally:
        os.close(handle)


def read_touched(control: Path) -> Iterator[Touched]:
    """Yield the files that a leg wrote or read."""
    listed = control / TOUCHED
    if listed.exists():
        yield from msgspec.json.Decoder(Touched).decode_lines(listed.read_bytes())


def as_text(path: str | bytes | os.PathLike[str] | os.PathLike[bytes]) -> str:
    """Write a path so that any of them fits into JSON."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def state_keys(roots: Mapping[str, int]) -> list[str]:
    """Return the keys under which the reference's states are looked up, the most telling first.

    Buffers are left out: inside an accumulation window they have moved on already.
    """
    return [" ".join(f"{roots.get(facet, 0):x}" for facet in facets) for facets in _LOOKED_UP]


_LOOKED_UP = (("weights", "optimizer", "hyperparameters"), ("weights",))
