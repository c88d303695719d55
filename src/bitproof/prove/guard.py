"""A process that outlives ``prove``: when prove is gone, however it went, no leg stays behind.

``python -m bitproof.prove.guard MARKER [KEPT]`` reads its standard input, whose other end prove holds. At its end it
kills every process with the marker; if the file KEPT is still there, it also puts the user's output folder back.
"""

import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from bitproof.prove.outputs import Kept, put_back
from bitproof.prove.process import kill_tree


class Guard:
    """Holds the guard process while a proof runs.

    Args:
        marker: of the proof's processes.
        kept: file that says which output folder to put back, if there is one; prove removes it once that is done.
    """

    def __init__(self, marker: str, kept: Path | None) -> None:
        arguments = [marker, *([str(kept)] if kept is not None else [])]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bitproof.prove.guard", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()


def main(marker: str, kept: str | None = None) -> None:
    """Wait for prove to end, and clean up after it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.stdin.read()
    kill_tree(marker)
    if kept is not None and Path(kept).exists():
        put_back(msgspec.json.decode(Path(kept).read_bytes(), type=Kept))


if __name__ == "__main__":
    main(*sys.argv[1:])
