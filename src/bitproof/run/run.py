"""Run: what a training loop holds so that it survives any crash."""

import os
import random
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
import torch

from bitproof import environment, state
from bitproof.compare.verdict import Verdict
from bitproof.errors import BitproofError, ResumeRefusedError, RunError, RunStateError, StoreError, UsageError
from bitproof.run.every import Every, Schedule
from bitproof.run.loaders import Loaders
from bitproof.run.log import Log, number_of
from bitproof.run.place import Place
from bitproof.run.proof import Legs
from bitproof.run.signals import Signals
from bitproof.store import BackgroundSaver, Commit, Keep, Store
from bitproof.trail.attach import attach, saving
from bitproof.trail.settings import Settings

FORMAT = 1
"""Version of the tree that a checkpoint of a run holds."""


class ForgottenWarning(UserWarning):
    """Something stateful touches a part of the run and is not one itself."""


class SaveFailedWarning(UserWarning):
    """A checkpoint could not be saved; training goes on, and the earlier ones are untouched."""


class ResumeDiffersWarning(UserWarning):
    """Steps that were taken again after a crash came out otherwise than before it, or a part was not restored."""


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
        parts: the state by name: ``model=``, ``optimizer=``, ``scheduler=``, ``scaler=``, ``ema=`` and so on. Modules,
            anything with ``state_dict`` and ``load_state_dict``, generators, and objects or dicts of plain values.

    Attributes:
        folder: as given, absolute.
        store: the checkpoints.
        verdict: of the steps redone after a crash, once they are; else None.

    Raises:
        StoreLockedError: another process writes there; the message says which.
        RunError: the process is one of several ranks, or another Run of this process is open.
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
        **parts: Any,
    ) -> None:
        _check_ranks()
        _check_parts(parts)
        if on_save_error not in {"warn", "raise"}:
            raise UsageError(f"Run(on_save_error={on_save_error!r}): expected 'warn' or 'raise'.")
        self.folder = Path(folder).absolute()
        self.verdict: Verdict | None = None
        self._parts, self._every, self._keep, self._strict = parts, save_every, keep, strict
        self._raises = on_save_error == "raise"
        self.store = Store(self.folder)
        self.store.lock.acquire()
        self._closing: list[Callable[[], None]] = [self.store.close]
        try:
            self._open(seed, background=background)
        except BaseException:
            self.close()
            raise

    def _open(self, seed: int | None, *, background: bool) -> None:
        self._loaders = Loaders()
        self._place = Place()
        self._logged: dict[str, Any] = {}
        self._logged_at = -1
        self._asked = self._checked = self._began = False
        self._last: Commit | None = None
        self._unreported: tuple[int, Callable[[], None]] | None = None
        self._resumed, self._tree = self._read()
        self._base = self._resumed.step if self._resumed else 0
        self._base_micro = self._micro = 0
        if self._tree is not None:
            self._place = Place.from_dict(self._tree["place"])
            self._base_micro = self._micro = self._tree["micro"]
        self._schedule = Schedule(self._every, self._base)
        self._saved_at = self._base, self._tree["place"] if self._tree is not None else None
        self._log = Log(self.folder / "log.jsonl")
        self._closing.insert(0, self._log.close)
        self._legs = Legs(self.folder)
        self._legs.begin(sequence=self._resumed.sequence if self._resumed else None, step=self._base, micro=self._micro)
        self._recorder, detach = attach(Settings(self._legs.trail, self._legs.number, from_start=False))
        self._recorder.on_boundary = self._passed
        self._recorder.on_write_error(self._trail_ended)
        self._closing.insert(0, detach)
        self._saver = BackgroundSaver(self.store, keep=self._keep) if background else None
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
        return self._resumed is not None

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
        if self._every is not None and self._saved_at != (self.step, self._place.to_dict()):
            self._save()  # so that a finished run is not taken for one that was interrupted

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
            self._restore_state()
            self._tree = None
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
            self._failed(f"{self.folder / 'log.jsonl'}: {error.strerror}", error)
        if self._keep is not None and self._keep.best in plain and self._every is not None:
            self._asked = True

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
        if self._began and self._tree is None and self._resumed is not None:
            raise RunError(f"{self.folder}: the loop has begun, and a run does not go back inside one process.")
        self._begin(loop=False)
        return self.step

    def save(self) -> None:
        """Save at the next batch boundary; at once outside of :meth:`epochs` and :meth:`batches`.

        Raises:
            StoreError: the system refused, and ``on_save_error`` is ``"raise"``.
        """
        self._asked = True
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
            if getattr(self, "_signals", None) is not None:
                self._finish_saving()
                self._judge()
        finally:
            for close in closing:
                close()
            if getattr(self, "_signals", None) is not None:
                self._signals.send_again()

    # --- saving --------------------------------------------------------------------------------------------------

    def _boundary(self) -> None:
        """Do what is due between two batches."""
        self._check_saver()
        if self._asked or self._signals.pending or self._schedule.due(self.step):
            self._save()
        if self._signals.pending:
            self._wait_for_saver()
            self._signals.answer()
        if self._legs.waits_for(self.step):
            self._judge()

    def _save(self) -> None:
        self._asked = False
        self._name_forgotten()
        step = self.step
        self._schedule.saved(step)
        self._saved_at = step, self._place.to_dict()
        tree = self._capture()
        document, tensors = state.encode(tree)
        facts = {"epoch": self._place.epoch} | (self._logged if self._logged_at == step else {})
        facts["environment"] = environment.describe()
        self._tree = None  # what was restored from may be pruned now
        committed = saving(str(self.folder), "bitproof.Run", {"parts": tree["parts"]})
        try:
            if self._saver is None:
                self._last = self.store.save(document, tensors, step=step, facts=facts, keep=self._keep)
                committed()
            else:
                self._wait_for_saver()
                self._saver.save(document, tensors, step=step, facts=facts)
                self._unreported = step, committed
        except StoreError as error:
            self._failed(str(error), error)

    def _check_saver(self) -> None:
        """Take note of what became of the save in flight, without waiting."""
        if self._saver is None:
            return
        try:
            self._saver.check()
        except StoreError as error:
            self._unreported = None
            self._failed(str(error), error)
        if self._unreported is not None and not self._saver.busy:
            self._last = self._saver.last
            if self._last is not None and self._last.step == self._unreported[0]:
                self._unreported[1]()
            self._unreported = None

    def _wait_for_saver(self) -> None:
        if self._saver is not None:
            self._saver.wait_quietly()
            self._check_saver()

    def _finish_saving(self) -> None:
        self._wait_for_saver()
        if self._saver is not None:
            self._saver.close()

    def _failed(self, message: str, error: Exception) -> None:
        if self._raises:
            raise error
        warnings.warn(
            f"step {self.step} was not saved, training goes on: {message}", SaveFailedWarning, stacklevel=_user_level()
        )

    def _trail_ended(self, error: Exception) -> None:
        warnings.warn(
            f"{self._legs.trail}: the trail ends at step {self.step}, so later steps cannot be compared after a crash: "
            f"{error}. Training goes on.",
            SaveFailedWarning,
            stacklevel=_user_level(),
        )

    def _capture(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            **state.capture(self._parts),
            "place": self._place.to_dict(),
            "step": self.step,
            "micro": self._micro,
            "loaders": self._loaders.state_dict(),
            "log": self._log.position,
        }

    def _name_forgotten(self) -> None:
        if not self._checked:
            self._checked = True
            for found in state.forgotten(self._parts):
                warnings.warn(
                    f"Run does not carry a {found.what}: it {found.why}. What to do: {found.remedy}.",
                    ForgottenWarning,
                    stacklevel=_user_level(),
                )

    def _passed(self, step: int, micro: int, updates: int) -> None:
        """Count backward passes of the open window."""
        del updates
        first = step == 1 and micro > 0
        self._micro = micro + (self._base_micro if first else 0)

    # --- resuming ------------------------------------------------------------------------------------------------

    def _read(self) -> tuple[Commit | None, dict[str, Any] | None]:
        before = len(self.store.problems)
        checkpoint = self.store.latest()
        for problem in self.store.problems[before:]:
            _say(f"a checkpoint is damaged and was set aside: {problem}")
        if checkpoint is None:
            return None, None
        tree = state.decode(checkpoint.document, checkpoint.tensors)
        if not isinstance(tree, dict) or tree.get("format") != FORMAT:
            found = tree.get("format") if isinstance(tree, dict) else None
            raise ResumeRefusedError(
                f"{self.folder}: the checkpoint of step {checkpoint.step} has format {found!r}, this bitproof has {FORMAT}. "
                "Resume with the version of bitproof that wrote it, or start in another folder."
            )
        return checkpoint.commit, tree

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
            self._log.cut(self._tree["log"] if self._tree is not None else 0)
            self._say_where()
        if self._tree is None:
            return
        if first or self._recorder.now == (0, 0):
            self._restore_state()
        if loop and not self._place.interrupted:
            self._tree = None  # the files may be pruned, and their space is free then

    def _say_where(self) -> None:
        if self._resumed is None:
            return
        passes = f" and {self._base_micro} backward passes of the next" if self._base_micro else ""
        again = self._legs.current.interrupted_at if self._legs.current else 0
        redo = f"; {_steps(self._base + 1, again)} will be taken again" if again > self._base else ""
        _say(f"{self.folder}: resumed at step {self._resumed.step}{passes}{redo}")

    def _restore_state(self) -> None:
        assert self._tree is not None
        assert self._resumed is not None
        report = state.restore(self._parts, self._tree)
        self._loaders.load_state_dict(self._tree["loaders"])
        bad = [part for part in report.parts if part.status != "restored"]
        if bad:
            listed = "".join(f"\n  {part.name}: {part.status}: {part.detail}" for part in bad)
            message = f"{self.folder}: step {self._resumed.step} did not come back as it was saved:{listed}"
            if self._strict:
                raise ResumeRefusedError(
                    f"{message}\nRegister the same parts as before, or let those start as they are with Run(strict=False)."
                )
            warnings.warn(message, ResumeDiffersWarning, stacklevel=_user_level())
        for note in report.notes:
            _say(f"{self.folder}: {note}")

    def _judge(self) -> None:
        try:
            verdict = self._legs.judge()
        except StoreError as error:
            self._failed(f"the proof of the resume could not be written: {error}", error)
            return
        now = self._legs.current
        if now is None:
            return
        if now.problem is not None:
            _say(f"{self.folder}: the redone steps could not be compared: {now.problem}")
        if verdict is None:
            return
        self.verdict = verdict
        redone = _steps(now.step + 1, now.step + verdict.steps.compared)
        if verdict.verdict == "identical":
            _say(f"{self.folder}: resumed at {now.step}; {redone} redone: identical")
            return
        warnings.warn(
            _explanation(self.folder, now.step, redone, verdict), ResumeDiffersWarning, stacklevel=_user_level()
        )


def _explanation(folder: Path, step: int, redone: str, verdict: Verdict) -> str:
    lines = [f"{folder}: resumed at {step}; {redone} redone: NOT identical, the resume was not exact"]
    found = verdict.divergence
    if found is not None:
        names = f" ({', '.join(found.names)})" if found.names else ""
        lines.append(f"  first difference: {found.facet} of step {found.step}{names}")
    for cause in verdict.causes:
        lines.append(f"  {cause.code} ({cause.confidence}): {cause.summary}")
        lines += [f"    {evidence}" for evidence in cause.evidence]
        lines.append(f"    What to do: {cause.remedy}")
    return "\n".join(lines)


def _steps(first: int, last: int) -> str:
    return f"step {first}" if first == last else f"steps {first}–{last}"


def _say(message: str) -> None:
    print(f"bitproof: {message}", file=sys.stderr, flush=True)  # noqa: T201


def _user_level() -> int:
    """Return the stack level, for warnings, of the first frame outside this package."""
    level, frame = 1, sys._getframe(1)  # noqa: SLF001  # the documented way to a frame
    package = str(Path(__file__).parent)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(package):
        level, frame = level + 1, frame.f_back
    return level - 1


def _check_ranks() -> None:
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        world = torch.distributed.get_world_size()
    if world > 1:
        raise RunError(
            f"Run is for a single process so far, and this is one of {world} ranks. Save with "
            "torch.distributed.checkpoint, and check the resume with: bitproof prove -- torchrun …"
        )


def _check_parts(parts: Mapping[str, Any]) -> None:
    if not parts:
        raise UsageError("Run(): name the parts of the state, such as model=model, optimizer=optimizer.")
    for name, part in parts.items():
        if isinstance(part, bool | int | float | complex | str | bytes | tuple | frozenset | np.generic | type(None)):
            raise RunStateError(
                f"Run({name}={part!r}): a {type(part).__name__} cannot be changed in place when it is restored. Put it into "
                f"a dict, such as {name}={{'value': {part!r}}}, and read it from there."
            )
    try:
        state.capture(parts)
    except BitproofError as error:
        raise RunStateError(f"Run(): {error}") from error
