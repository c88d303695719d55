"""What a loop logs: JSON lines, each step once, also after a crash."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from bitproof.errors import RunError, UsageError

FILE = "log.jsonl"
"""In the folder of a run."""

_NOT_FINITE = {"nan", "inf", "-inf"}


class Logged(msgspec.Struct, frozen=True):
    """One value that was logged.

    Args:
        step: optimizer steps of the run when it was logged.
        epoch: epochs that were done.
        name: as given to ``run.log``.
        value: likewise; one that is not finite comes back as a float too.
    """

    step: int
    epoch: int
    name: str
    value: bool | int | float | str


def read_log(folder: str | os.PathLike[str], *, upto: int | None = None) -> list[Logged]:
    """Read what a run has logged, in order.

    Steps that were taken again after a crash are there once. A line that a crash has cut is left out.

    Args:
        folder: the run's; with several ranks rank 0's, the others' are in ``ranks/`` below it.
        upto: bytes of the file to be read; None for all.

    Raises:
        RunError: a line is damaged.
    """
    path = Path(folder) / FILE
    if not path.exists():
        return []
    found = []
    for number, line in enumerate(path.read_bytes()[:upto].split(b"\n")[:-1], start=1):
        try:
            row = msgspec.json.decode(line, type=dict[str, bool | int | float | str])
            step, epoch = (msgspec.convert(row.pop(name), int) for name in ("step", "epoch"))
        except (msgspec.MsgspecError, UnicodeDecodeError, KeyError) as error:
            raise RunError(
                f"{path}, line {number}: expected step, epoch and values as JSON, found something else ({error}). Remove the line: "
                "no checkpoint needs it."
            ) from error
        found += [Logged(step, epoch, name, _number(value)) for name, value in row.items()]
    return found


class Log:
    """A file of JSON lines: ``step``, ``epoch``, and what was logged.

    Lines of steps that a crash undid are cut off at the resume, since the redone steps write them again.

    Args:
        path: the file; it need not be there.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab")

    @property
    def position(self) -> int:
        """Bytes written so far."""
        return self._file.tell()

    def write(self, row: Mapping[str, Any]) -> None:
        """Add a line; it has reached the operating system when this returns."""
        self._file.write(json.dumps(row).encode() + b"\n")
        self._file.flush()

    def cut(self, position: int) -> None:
        """Go back to a position, if the file is longer."""
        if self.position > position:
            self._file.truncate(position)
            self._file.seek(position)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def number_of(name: str, value: Any) -> float | int | str:
    """Return a value as a log line and a checkpoint's facts hold it.

    Args:
        name: for the message.
        value: a number, a text, or a tensor or array of one element, which is read now.

    Raises:
        UsageError: it is something else.
    """
    item = value.item() if callable(getattr(value, "item", None)) and getattr(value, "size", None) else value
    if isinstance(item, float) and not math.isfinite(item):
        return str(item)  # JSON has no word for it
    if isinstance(item, bool | int | float | str):
        return item
    raise UsageError(
        f"log({name}=…): expected a number, a text or a tensor of one element, found a {type(value).__name__}."
    )


def _number(value: bool | float | str) -> bool | int | float | str:
    return float(value) if isinstance(value, str) and value in _NOT_FINITE else value
