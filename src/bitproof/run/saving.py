"""Saving a run: when it is due, in the loop or behind it, and what becomes of each save."""

import uuid
from collections.abc import Callable, Mapping
from typing import Any

import torch

from bitproof.errors import StoreError, StoreWriteError
from bitproof.run.agreement import RANKS, SAVE, Chosen, Held, chosen, held, save_name, shared
from bitproof.run.every import Every, Schedule
from bitproof.run.notices import SaveFailedWarning, warn
from bitproof.run.ranks import Ranks
from bitproof.store import BackgroundSaver, Keep, Store


class Saving:
    """Saves checkpoints of one rank, and removes older ones.

    With one rank, older ones are pruned with each commit. With several, a save counts when every rank has committed it:
    they agree on that before the next one begins, and then prune alike.

    Args:
        store: where to.
        ranks: the processes that save together.
        every: when a save is due by itself; None for never.
        keep: which are kept; None for all.
        background: write behind the loop.
        raises: raise what the system refuses, in place of a warning.
        step: at which the leg starts.
    """

    def __init__(
        self,
        store: Store,
        ranks: Ranks,
        *,
        every: Every | None,
        keep: Keep | None,
        background: bool,
        raises: bool,
        step: int,
    ) -> None:
        self.every, self.keep = every, keep
        self.asked = False
        self.step = step
        """Of the last save."""
        self._store, self._ranks, self._raises = store, ranks, raises
        self._schedule = Schedule(every, step)
        self._at_once = keep if ranks.world == 1 else None
        self._saver = BackgroundSaver(store, keep=self._at_once) if background else None
        self._committed: Callable[[], None] | None = None
        self._leg = ranks.gather(uuid.uuid4().hex[:12], str)[0]  # the system's randomness: none of the run's is drawn
        self._count = 0
        self._open = False
        self._failure: str | None = None

    def due(self, step: int) -> bool:
        """Tell whether a save was asked for, or is due by itself."""
        return self.asked or self._schedule.due(step)

    def save(
        self,
        document: bytes,
        tensors: Mapping[str, torch.Tensor],
        *,
        step: int,
        facts: Mapping[str, Any],
        committed: Callable[[], None],
    ) -> None:
        """Save, or begin to, when the save before is done.

        Args:
            document: of the checkpoint.
            tensors: likewise.
            step: likewise.
            facts: likewise.
            committed: called when it is.
        """
        self.settle()
        self.asked, self.step = False, step
        self._schedule.saved(step)
        self._count += 1
        if self._ranks.world > 1:
            facts = {**facts, RANKS: self._ranks.world, SAVE: save_name(self._leg, self._count)}
        self._committed, self._open = committed, True
        if self._saver is not None:
            self._saver.save(document, tensors, step=step, facts=facts)
            return
        try:
            self._store.save(document, tensors, step=step, facts=facts, keep=self._at_once)
        except StoreError as error:
            self._fail(error)
        else:
            self._report()
        self.settle()

    def check(self) -> None:
        """Take note of what became of the save in flight, without waiting.

        Raises:
            StoreError: it failed, and that is to be raised.
        """
        if self._saver is None:
            return
        done = not self._saver.busy
        try:
            self._saver.check()
        except StoreError as error:
            self._fail(error)
        if done:
            self._report()

    def settle(self) -> None:
        """Wait for the save in flight; with several ranks, agree on it, and prune. All ranks call it together.

        Raises:
            StoreError: it failed, here or on another rank, and that is to be raised.
        """
        self._wait()
        if self._ranks.world == 1 or not self._open:
            return
        self._open = False
        failure, self._failure = self._failure, None
        commits = self._store.checkpoints()
        answers = self._ranks.gather((failure, held(commits)), tuple[str | None, Held])
        kept = chosen(self.keep, commits, shared([answer for _, answer in answers]))
        self._store.prune(Chosen(frozenset(self._ranks.gather(kept, list[str])[0])))
        others = [f"rank {rank}: {text}" for rank, (text, _) in enumerate(answers) if text is not None]
        if others and failure is None:
            message = "another rank could not save its part, so this save counts for none: " + "; ".join(others)
            self.failed(self.step, message, StoreWriteError(message))

    def finish(self) -> None:
        """Wait for the save in flight, and free what it needs; other ranks are not asked."""
        self._wait()
        if self._saver is not None:
            self._saver.close()

    def failed(self, step: int, message: str, error: Exception) -> None:
        """Say that something of a step was not saved, or raise the error.

        Args:
            step: which.
            message: what.
            error: why.
        """
        if self._raises:
            raise error
        warn(f"step {step} was not saved, training goes on: {message}", SaveFailedWarning)

    def _wait(self) -> None:
        if self._saver is not None:
            self._saver.wait_quietly()
            self.check()

    def _report(self) -> None:
        committed, self._committed = self._committed, None
        if committed is not None:
            committed()

    def _fail(self, error: StoreError) -> None:
        self._committed = None
        self._failure = str(error)
        self.failed(self.step, str(error), error)
