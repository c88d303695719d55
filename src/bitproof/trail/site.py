"""Find the user's own line behind a call into PyTorch."""

import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

_PACKAGE = str(Path(__file__).resolve().parents[1])
_FOREIGN = tuple(
    str(Path(path).resolve()) + "/"
    for key in ("stdlib", "platstdlib", "purelib", "platlib")
    if (path := sysconfig.get_paths().get(key))
)


def user_line() -> str | None:
    """Return ``file:line`` of the innermost frame outside libraries, or None."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  # the documented way to a frame without building a traceback
    while frame is not None:
        name = frame.f_code.co_filename
        if is_users(name):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return None


def is_users(file: str) -> bool:
    """Tell whether code of this file is the user's, not a library's."""
    return not file.startswith(("<", _PACKAGE, *_FOREIGN))


def caller_file() -> str:
    """Return the file of the code that made the call which bitproof watches: the user's, or a library's on its behalf."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  # as above
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return frame.f_code.co_filename if frame is not None else "<nobody>"
