"""Run: what a training loop holds so that it survives any crash."""

import os
import random
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import torch

from bitproof import environment, state
from bitproof.errors import RunError, StoreError, UsageError
from bitproof.run.agreement import check_places
from bitproof.run.every import Every
from bitproof.run.loaders import Loaders
from bitproof.run.log import FILE, Log, Logged, number_of, read_log
from bitproof.run.notices import ResumeDiffersWarning, SaveFailedWarning, explanation, say, steps, warn
from bitproof.run.parts import Parts
from bitproof.run.place import Place
from bitproof.run.proof import Legs
from bitproof.run.ranks import Ranks, folder_of, reordered_sums
from bitproof.run.resuming import FORMAT, read
from bitproof.run.saving import Saving
from bitproof.run.signals import Signals
from bitproof.store import Keep, Store
from bitproof.trail.attach import attach, saving
from bitproof.trail.settings import Settings

if TYPE_CHECKING:
    from bitproof.compare.verdict import Verdict


class Run:
    """A training run in a folder, through any number of crashes.

    Checkpoints are taken at batch boundaries: everything that the body of the loop did for a batch is in it. A new
    process with the same folder goes on at the next batch, with every bit as it was. Steps that were taken after the
    last checkpoint are taken again, and compared with the trail from before the crash.

    Seeds are set when the run is made, fresh or resumed, so that what is built after it (a random split) is the same
    in every leg; a model that was built before it keeps its own first weights. At a resume the parts and all generators
    are put back when the loop begins: at the first of :meth:`epochs`, :meth:`batches` and :meth:`restore`.

    Args:
        folder: of the run; made if missing.
        seed: for Python's, NumPy's and torch's generators; None to leave them alone.
        save_every: when to save by itself; None for never.
        keep: which checkpoints are kept. A value of the name ``keep.best`` that is logged makes a save due.
        background: write behind the loop; memory for one copy of the state is needed. False writes in the loop.
        on_save_error: ``"warn"`` and train on, or ``"raise"``, when the system refuses a save (a full disk).
        strict: refuse to resume if a part was not restored. False warns, and such parts start as they are.
        later: names of parts that are made only when the loop first needs them; see :meth:`register`.
        parts: the state by name: ``model=``, ``optimizer=``, ``scheduler=``, ``scaler=``, ``ema=`` and so on. Modules,
            anything with ``state_dict`` and ``load_state_dict``, generators, and objects or dicts of plain values.

    Attributes:
        folder: as given, absolute.
        store: the checkpoints; of this rank, if there are several.
        verdict: of the steps redone after a crash, once they are; else None.

    Raises:
        StoreLockedError: another process writes there; the message says which.
        RunError: the process is one of several ranks, and torch.distributed is not initialised.
        ResumeRefusedError: the checkpoint is of another number of ranks, or the ranks do not have the same ones.
        RunStateError: a part has no state that could be put back.

    Example:
        >>> import tempfile
        >>> model = torch.nn.Linear(1, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> loader = torch.utils.data.DataLoader(torch.ones(4, 1), batch_size=2)
        >>> with Run(tempfile.mkdtemp(), model=model, optimizer=optimizer, save_every=Every(steps=1)) as run:
        ...     for epoch in run.epochs(2):
        ...         for batch in run.batches(loader):
        ...             model(batch).sum().backward()
        ...             optimizer.step()
        ...     run.step
        4
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        seed: int | None = 0,
        save_every: Every | None = Every(minutes=10),  # noqa: B008  # immutable
        keep: Keep | None = Keep(last=3),  # noqa: B008  # immutable
        background: bool = True,
        on_save_error: Literal["warn", "raise"] = "warn",
        strict: bool = True,
        later: Collection[str] = (),
        **parts: Any,
    ) -> None:
        if on_save_error not in {"warn", "raise"}:
            raise UsageError(f"Run(on_save_error={on_save_error!r}): expected 'warn' or 'raise'.")
        self.folder = Path(folder).absolute()
        self.verdict: Verdict | None = None
        self._parts = Parts(parts, later, where=str(self.folder), strict=strict)
        self._ranks = Ranks()
        self._home = folder_of(self.folder, self._ranks.rank)
        self._closing: list[Callable[[], None]] = [self._ranks.close]
        self._signals: Signals | None = None
        try:
            self._open(seed, save_every, keep, background=background, raises=on_save_error == "raise")
        except BaseException:
            self.close()
            raise

    def _open(
        self, seed: int | None, every: Every | None, keep: Keep | None, *, background: bool, raises: bool
    ) -> None:
        self.store = Store(self._home)
        self.store.lock.acquire()
        self._closing.insert(0, self.store.close)
        reordered = reordered_sums(self._parts.live, self._ranks.world)
        if reordered is not None and self._ranks.rank == 0:
            warn(reordered, ResumeDiffersWarning)
        self._loaders = Loaders()
        self._place = Place()
        self._logged: dict[str, Any] = {}
        self._logged_at = -1
        self._began = False
        self._resumed = found = read(self.store, self._ranks, self.folder)  # None again once it is not needed
        self._commit = found.commit if found is not None else None
        self._base = self._base_micro = 0
        self._saved_at: tuple[int, dict[str, Any] | None] = 0, None
        if found is not None:
            self._base, self._base_micro = found.commit.step, found.tree["micro"]
            self._place = Place.from_dict(found.tree["place"])
            self._saved_at = self._base, found.tree["place"]
        self._micro = self._base_micro
        self._saving = Saving(
            self.store, self._ranks, every=every, keep=keep, background=background, raises=raises, step=self._base
        )
        self._log = Log(self._home / FILE)
        self._closing.insert(0, self._log.close)
        self._legs = Legs(self._home)
        sequence = self._commit.sequence if self._commit is not None else None
        self._legs.begin(sequence=sequence, step=self._base, micro=self._micro)
        self._recorder, detach = attach(Settings(self._legs.trail, self._legs.number, from_start=False))
        self._recorder.on_boundary = self._passed
        self._recorder.on_write_error(self._trail_ended)
        self._closing.insert(0, detach)
        self._signals = Signals()
        self._closing.insert(0, self._signals.close)
        if seed is not None:
            random.seed(seed)
            np.random.seed(seed % 2**32)  # noqa: NPY002  # the global one is what scripts draw from
            torch.manual_seed(seed)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- where the run is ----------------------------------------------------------------------------------------

    @property
    def step(self) -> int:
        """Optimizer steps of the whole run so far; ones that a scaler skipped count. May be set."""
        return self._base + self._recorder.step

    @step.setter
    def step(self, value: int) -> None:
        self._base = value - self._recorder.step

    @property
    def epoch(self) -> int:
        """Epochs that are done; outside :meth:`epochs`, passes over loaders that are done."""
        return self._place.epoch

    @property
    def resumed(self) -> bool:
        """Whether there was a checkpoint to go on from."""
        return self._commit is not None

    @property
    def history(self) -> list[Logged]:
        """What :meth:`log` was given so far, by this leg and those before it, each step once."""
        if self._began or not self._closing:
            return read_log(self._home)
        return read_log(self._home, upto=self._resumed.tree["log"] if self._resumed is not None else 0)

    # --- the loop ------------------------------------------------------------------------------------------------

    def epochs(self, count: int) -> Iterator[int]:
        """Yield the numbers of the epochs that are left of ``count``, from 0.

        The epoch in which the run was interrupted is yielded again, and its :meth:`batches` goes on inside it. Code of
        an epoch that stands before the interrupted loop runs again; the state is put back once more after it.

        Args:
            count: epochs of the whole run.

        Raises:
            ResumeRefusedError: a part could not be restored, and the run is strict.
        """
        self._begin()
        if self._place.in_epochs:
            raise RunError("run.epochs() is not to be called inside another run.epochs().")
        self._place.in_epochs = True
        try:
            while self._place.epoch < count:
                self._place.enter_epoch()
                yield self._place.epoch
                self._place.leave_epoch()
                self._boundary()
        finally:
            self._place.in_epochs = False
        if self._saving.every is not None and self._saved_at != (self.step, self._place.to_dict()):
            self._save()  # so that a finished run is not taken for one that was interrupted
        self._saving.settle()

    def batches(self, loader: Any, *, name: str | None = None, accept_changed_data: bool = False) -> Iterator[Any]:
        """Yield the batches of a pass over a loader that the run has not had yet.

        Args:
            loader: what :func:`bitproof.data.carry` takes: a ``bitproof.data.Loader``, a DataLoader without workers,
                torchdata's StatefulDataLoader, or a stream with a state.
            name: under which its position is saved; by default, by its place among the loops of an epoch.
            accept_changed_data: go on with data of another length or content than the run had.

        Raises:
            NotCarriedError: the loader cannot be resumed; the message says why and what to use.
            DataChangedError: the data is not what it was; both values are in the message.
            ResumeRefusedError: a part could not be restored, and the run is strict.
        """
        self._begin()
        number = self._place.enter_pass()
        carriage = self._loaders.of(loader, name or f"loader {number}")
        if number < self._place.done:
            return
        if self._place.interrupted:
            # Whatever ran before the loop has run before the interruption too, and is in the saved state.
            self._put_back()
            self._resumed = None
        self._loaders.go(carriage, accept_changed_data=accept_changed_data)
        self._place.begin_pass()
        carriage.begin()
        try:
            for batch in carriage.carried:
                self._place.in_body = True
                yield batch
                self._place.in_body = False
                self._boundary()
        except GeneratorExit:
            carriage.break_off()
            raise
        finally:
            self._place.end_pass()

    def log(self, **values: Any) -> None:
        """Write values down in ``log.jsonl``, with the step and the epoch.

        What is logged after a step is also noted with a checkpoint of that step, where ``keep.best`` looks for it.

        Args:
            values: numbers, texts, or tensors of one element; those are read now, which waits for their device.

        Raises:
            UsageError: a value is something else.
        """
        plain = {name: number_of(name, value) for name, value in values.items()}
        if self._logged_at != self.step:
            self._logged, self._logged_at = {}, self.step
        self._logged |= plain
        try:
            self._log.write({"step": self.step, "epoch": self._place.epoch, **plain})
        except OSError as error:
            self._saving.failed(self.step, f"{self._home / FILE}: {error.strerror}", error)
        if self._saving.keep is not None and self._saving.keep.best in plain and self._saving.every is not None:
            self._saving.asked = True

    # --- by hand -------------------------------------------------------------------------------------------------

    def restore(self) -> int:
        """Put the parts and all generators back as the newest good checkpoint has them.

        :meth:`epochs` and :meth:`batches` do this by themselves; a loop of another shape calls it before it begins.

        Returns:
            The step: 0 if the run is fresh.

        Raises:
            ResumeRefusedError: a part could not be restored, and the run is strict.
            RunError: this process has trained already; a run goes back in a new process only.
        """
        if self._began and self._resumed is None and self._commit is not None:
            raise RunError(f"{self.folder}: the loop has begun, and a run does not go back inside one process.")
        self._begin(loop=False)
        return self.step

    def register(self, **parts: Any) -> None:
        """Add parts that were announced with ``later``, and put back what was saved of them.

        Example, a scaler that is made at its first use::

            run = Run(folder, model=model, optimizer=optimizer, later=["scaler"])
            ...
            run.register(scaler=torch.amp.GradScaler())

        Args:
            parts: by name.

        Raises:
            UsageError: one was not announced, or is registered already.
            RunStateError: one has no state that could be put back.
            ResumeRefusedError: what was saved does not fit, and the run is strict.
        """
        self._parts.register(parts)

    def save(self) -> None:
        """Save at the next batch boundary; at once outside of :meth:`epochs` and :meth:`batches`.

        With several ranks, inside of them one that calls it is enough; outside, all do.

        Raises:
            StoreError: the system refused, and ``on_save_error`` is ``"raise"``.
        """
        self._saving.asked = True
        if not self._place.inside:
            self._boundary()

    def save_if_due(self) -> None:
        """Save if it is due or a signal asked for it; for a loop without :meth:`batches`, after each batch.

        Raises:
            StoreError: the system refused, and ``on_save_error`` is ``"raise"``.
            SystemExit: SIGTERM came; the state is saved.
        """
        self._boundary()

    def close(self) -> None:
        """Finish the save in flight, judge what was redone, close the files, and put signal handlers back."""
        closing, self._closing = self._closing, []
        if not closing:
            return
        try:
            if self._signals is not None:
                self._saving.finish()
                self._judge()
        finally:
            for close in closing:
                close()
            if self._signals is not None:
                self._signals.send_again()

    # --- saving --------------------------------------------------------------------------------------------------

    def _boundary(self) -> None:
        """Do what is due between two batches."""
        assert self._signals is not None
        self._saving.check()
        # What the ranks agreed on decides, and nothing that comes to one of them later: that is for the next boundary.
        due, *came = self._agree(int(self._saving.due(self.step)), *self._signals.came)
        if due or any(came):
            self._save()
        if any(came):
            self._saving.settle()
            self._signals.answer(came)
        if self._legs.waits_for(self.step):
            self._judge()

    def _agree(self, *wanted: int) -> list[int]:
        """Return what any rank wants, and make sure that all are at the same boundary."""
        if self._ranks.world == 1:
            return list(wanted)
        place = [self.step, self._place.epoch, self._place.done]
        answer = self._ranks.most([*place, *(-number for number in place), *wanted])
        check_places(str(self.folder), [-number for number in answer[3:6]], answer[:3])
        return answer[6:]

    def _save(self) -> None:
        self._parts.name_forgotten()
        step = self.step
        self._saved_at = step, self._place.to_dict()
        tree = {
            "format": FORMAT,
            **self._parts.capture(),
            "place": self._place.to_dict(),
            "step": step,
            "micro": self._micro,
            "loaders": self._loaders.state_dict(),
            "log": self._log.position,
        }
        document, tensors = state.encode(tree)
        self._resumed = None  # its files may be pruned now
        facts = {"epoch": self._place.epoch} | (self._logged if self._logged_at == step else {})
        facts["environment"] = environment.describe()
        committed = saving(str(self._home), "bitproof.Run", {"parts": tree["parts"]})
        self._saving.save(document, tensors, step=step, facts=facts, committed=committed)

    def _trail_ended(self, error: Exception) -> None:
        warn(
            f"{self._legs.trail}: the trail ends at step {self.step}, so later steps cannot be compared after a crash: "
            f"{error}. Training goes on.",
            SaveFailedWarning,
        )

    def _passed(self, step: int, micro: int, updates: int) -> None:
        """Count backward passes of the open window."""
        del updates
        first = step == 1 and micro > 0
        self._micro = micro + (self._base_micro if first else 0)

    # --- resuming ------------------------------------------------------------------------------------------------

    def _begin(self, *, loop: bool = True) -> None:
        """Put the state back.

        Args:
            loop: the loop begins now, so this is the last time, unless it goes on inside a pass.
        """
        if not self._closing:
            raise RunError(f"the run in {self.folder} is closed. Make a new Run to go on.")
        first, self._began = not self._began, True
        if first:
            # Steps that were not saved are taken again, and logged again.
            self._log.cut(self._resumed.tree["log"] if self._resumed is not None else 0)
            self._say_where()
        if self._resumed is None:
            return
        if first or self._recorder.now == (0, 0):
            self._put_back()
        if loop and not self._place.interrupted:
            self._resumed = None  # the files may be pruned, and their space is free then

    def _say_where(self) -> None:
        if self._commit is None or self._ranks.rank > 0:
            return
        passes = f" and {self._base_micro} backward passes of the next" if self._base_micro else ""
        again = self._legs.current.interrupted_at if self._legs.current else 0
        redo = f"; {steps(self._base + 1, again)} will be taken again" if again > self._base else ""
        say(f"{self.folder}: resumed at step {self._commit.step}{passes}{redo}")

    def _put_back(self) -> None:
        assert self._resumed is not None
        self._parts.put_back(self._resumed)
        self._loaders.load_state_dict(self._resumed.tree["loaders"])

    def _judge(self) -> None:
        try:
            verdict = self._legs.judge()
        except StoreError as error:
            self._saving.failed(self.step, f"the proof of the resume could not be written: {error}", error)
            return
        now = self._legs.current
        if now is None:
            return
        if now.problem is not None:
            say(f"{self._home}: the redone steps could not be compared: {now.problem}")
        if verdict is None:
            return
        self.verdict = verdict
        redone = steps(now.step + 1, now.step + verdict.steps.compared)
        if verdict.verdict != "identical":
            warn(explanation(str(self._home), now.step, redone, verdict), ResumeDiffersWarning)
        elif self._ranks.rank == 0:
            say(f"{self.folder}: resumed at {now.step}; {redone} redone: identical")
