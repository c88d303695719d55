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
        if not name.startswith(("<", _PACKAGE, *_FOREIGN)):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return None
