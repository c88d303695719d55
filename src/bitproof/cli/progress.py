"""Show on standard error what a proof is doing."""

import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console

from bitproof.prove.process import Finished

_QUIET = 30.0
"""Seconds without output after which a leg's silence is said."""
_REDRAW = 0.2
_HOW = {"ended": "ended", "killed": "cut off", "stopped": "stopped", "failed": "failed", "timed-out": "timed out"}


class ProgressLine:
    """A line for each leg that ended; on a terminal, one more that is redrawn for those that run."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._console = Console(stderr=True, quiet=quiet)
        self._live = self._console.is_terminal and not quiet
        self._running: list[_Leg] = []
        self._drawn = 0.0
        self._lock = threading.RLock()

    def begin(self, name: str, log: Path, total: int | None) -> "_Leg":
        """Show that a leg starts."""
        leg = _Leg(self, name, log, total)
        with self._lock:
            self._running.append(leg)
            self.draw()
        return leg

    def ended(self, leg: "_Leg", finished: Finished) -> None:
        """Show how a leg ended."""
        with self._lock:
            self._running.remove(leg)
            self._say(f"{leg.name}: {_HOW[finished.ending]} after {finished.seconds:.1f} s", "dim")

    def note(self, text: str) -> None:
        """Say something."""
        with self._lock:
            self._say(text, "yellow")

    def draw(self) -> None:
        """Draw the legs that run; where nothing can be redrawn, say once that one is silent."""
        with self._lock:
            now = time.monotonic()
            if not self._live:
                for leg in self._running:
                    if not leg.silence_said and leg.silence > _QUIET:
                        leg.silence_said = True
                        self._say(str(leg), "dim")
            elif now - self._drawn >= _REDRAW:
                self._drawn = now
                width = max(20, self._console.width - 1)
                sys.stderr.write(f"\r\x1b[K{' | '.join(map(str, self._running))[:width]}")
                sys.stderr.flush()

    def _say(self, text: str, style: str) -> None:
        if self._live:
            sys.stderr.write("\r\x1b[K")
        self._console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)


class _Leg:
    """How far one leg is."""

    def __init__(self, line: ProgressLine, name: str, log: Path, total: int | None) -> None:
        self.name = name
        self.silence_said = False
        self._line = line
        self._log = log
        self._total = total
        self._elapsed = 0.0
        self._steps: int | None = 0

    def tick(self, elapsed: float, steps: int | None) -> None:
        """Show how far it is."""
        self._elapsed, self._steps = elapsed, steps
        self._line.draw()

    def end(self, finished: Finished) -> None:
        """Show how it ended."""
        self._line.ended(self, finished)

    @property
    def silence(self) -> float:
        """Seconds since it last printed something."""
        try:
            return min(self._elapsed, time.time() - self._log.stat().st_mtime)
        except OSError:
            return 0.0

    def __str__(self) -> str:
        if not self._elapsed:
            return f"{self.name}: starting"
        of = f" of {self._total}" if self._total else ""
        quiet = f", printed nothing for {self.silence:.0f} s" if self.silence > _QUIET else ""
        steps = f"{self._steps}{of} steps, " if self._steps is not None else ""
        return f"{self.name}: {steps}{self._elapsed:.0f} s{quiet}"


class Passing:
    """One line on standard error that says what is going on, on a terminal only, and goes away again."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._shown = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()

    def show(self, text: str) -> None:
        """Show a text in place of the last one."""
        if self._console.is_terminal:
            sys.stderr.write(f"\r\x1b[K{text[: max(20, self._console.width - 1)]}")
            sys.stderr.flush()
            self._shown = True

    def clear(self) -> None:
        """Take the text away."""
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._shown = False
