"""What a loop logs: JSON lines, each step once, also after a crash."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bitproof.errors import UsageError


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
