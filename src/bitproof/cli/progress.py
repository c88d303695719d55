"""Show on standard error what a proof is doing."""

import sys
import time
from pathlib import Path

from rich.console import Console

from bitproof.prove.process import Finished

_QUIET = 30.0
"""Seconds without output after which a leg's silence is said."""
_REDRAW = 0.2


class ProgressLine:
    """One line a leg: redrawn on a terminal, printed once elsewhere."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._console = Console(stderr=True, quiet=quiet)
        self._live = self._console.is_terminal and not quiet
        self._name = ""
        self._log = Path()
        self._total: int | None = None
        self._drawn = 0.0
        self._steps = 0

    def begin(self, name: str, log: Path, total: int | None) -> None:
        """Show that a leg starts."""
        self._name, self._log, self._total, self._steps = name, log, total, 0
        if self._live:
            self._draw(f"{name}: starting")

    def tick(self, elapsed: float, steps: int) -> None:
        """Show how far a leg is."""
        self._steps = steps
        now = time.monotonic()
        if not self._live or now - self._drawn < _REDRAW:
            return
        self._drawn = now
        of = f" of {self._total}" if self._total else ""
        silent = self._silence()
        quiet = f", printed nothing for {silent:.0f} s" if silent > _QUIET else ""
        self._draw(f"{self._name}: {steps}{of} steps, {elapsed:.0f} s{quiet}")

    def end(self, finished: Finished) -> None:
        """Show how a leg ended."""
        if self._live:
            sys.stderr.write("\r\x1b[K")
        how = {
            "ended": "ended",
            "killed": "cut off",
            "stopped": "stopped",
            "failed": "failed",
            "timed-out": "timed out",
        }
        self._console.print(
            f"{self._name}: {how[finished.ending]} after {finished.seconds:.1f} s", style="dim", highlight=False
        )

    def note(self, text: str) -> None:
        """Say something."""
        self._console.print(text, style="yellow", highlight=False)

    def _draw(self, text: str) -> None:
        width = max(20, self._console.width - 1)
        sys.stderr.write(f"\r\x1b[K{text[:width]}")
        sys.stderr.flush()

    def _silence(self) -> float:
        try:
            return time.time() - self._log.stat().st_mtime
        except OSError:
            return 0.0
