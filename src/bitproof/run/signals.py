"""SIGTERM and SIGUSR1 ask for a save at the next batch boundary; SIGTERM then ends the process."""

import os
import signal
import threading
from collections.abc import Sequence
from types import FrameType
from typing import Any

REQUEUE_STATUS = 75
"""Exit status after SIGTERM: EX_TEMPFAIL of sysexits.h, "try again later". A scheduler may requeue the job on it."""

WATCHED = (signal.SIGTERM, signal.SIGUSR1)


class Signals:
    """Watches both signals from the main thread on; elsewhere Python allows no handlers, and nothing is watched."""

    def __init__(self) -> None:
        self._pending: list[signal.Signals] = []
        self._previous: dict[signal.Signals, Any] = {}
        self._process = os.getpid()
        if threading.current_thread() is threading.main_thread():
            for number in WATCHED:
                if signal.getsignal(number) is not None:  # None: set by C code, which could not be put back
                    self._previous[number] = signal.signal(number, self._note)

    @property
    def came(self) -> list[int]:
        """1 for each of :data:`WATCHED` that has come and was not yet answered, else 0."""
        return [int(number in self._pending) for number in WATCHED]

    def answer(self, came: Sequence[int]) -> None:
        """Call the handlers that were there before, now that the state is saved; after SIGTERM, exit.

        Args:
            came: as :attr:`came`, of any rank; what else has come meanwhile stays unanswered.

        Raises:
            SystemExit: with :data:`REQUEUE_STATUS`, if SIGTERM came and was not ignored before.
        """
        answered = [number for number, any_rank in zip(WATCHED, came, strict=True) if any_rank]
        for number in answered:
            if number in self._pending:
                self._pending.remove(number)
            previous = self._previous.get(number)
            if callable(previous):
                previous(number, None)
        if any(n == signal.SIGTERM and self._previous.get(n) is not signal.SIG_IGN for n in answered):
            raise SystemExit(REQUEUE_STATUS)

    def close(self) -> None:
        """Put back the handlers that were there before, unless somebody has set others since."""
        for number, previous in self._previous.items():
            if signal.getsignal(number) == self._note:
                signal.signal(number, previous)
        self._previous = {}

    def send_again(self) -> None:
        """Send what came after the last boundary again, to whoever handles it now."""
        pending, self._pending = self._pending, []
        for number in pending:
            signal.raise_signal(number)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a forked child has no loop that would answer
            previous = self._previous[signal.Signals(number)]
            if callable(previous):
                previous(number, frame)
            else:
                signal.signal(number, previous)
                os.kill(os.getpid(), number)
            return
        found = signal.Signals(number)
        if found not in self._pending:
            self._pending.append(found)
