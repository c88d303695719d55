"""Runs inside the training process: times its steps, and ends it after the last one that counts. Nothing is recorded."""

import atexit
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
import torch
from torch.amp.grad_scaler import GradScaler
from torch.optim.optimizer import register_optimizer_step_post_hook

from bitproof.price.answer import FAILED, TIMED, Failure, Timing, Window
from bitproof.prove.process import Reached, answer
from bitproof.trail.attach import leave_note
from bitproof.trail.launch import make_deterministic
from bitproof.trail.probes.patching import hide_from_compiler, wrap
from bitproof.trail.site import is_users

_NO_IMPLEMENTATION = re.compile(r"(\S+) does not have a deterministic implementation")


def attach(settings: Mapping[str, Any]) -> None:
    """Time this process's steps."""
    hide_from_compiler("bitproof")
    clock = Clock(Path(settings["control"]), msgspec.convert(settings["window"], Window))
    register_optimizer_step_post_hook(lambda *_: clock.updated())
    for name in ("backward", "grad"):
        wrap(torch.autograd, name, _before(clock.work))
    # A scaler that skips an update does not call the optimizer; the step was taken all the same.
    wrap(GradScaler, "step", _after(clock.updated))
    make_deterministic(settings)
    owner = os.getpid()

    def end() -> None:
        if os.getpid() != owner:
            return
        if clock.taken:
            clock.write()
        else:
            leave_note(Path(settings["trail"]), settings["leg"], {"events": [], "torch": True})

    atexit.register(end)
    _watch_errors(Path(settings["control"]))


class Clock:
    """Counts steps as a trail does, and takes the time at the first backward pass of each.

    Optimizer calls with no backward pass between them are one step.

    Args:
        control: folder to answer in.
        window: the steps that count.
    """

    def __init__(self, control: Path, window: Window) -> None:
        self.taken = 0
        self._control = control
        self._window = window
        self._updated = False
        self._began: float | None = None
        self._latest = 0.0
        self._counted = 0

    def updated(self) -> None:
        """Note an update: with the first one, the step is taken."""
        if not torch.compiler.is_compiling():
            self.taken += not self._updated
            self._updated = True

    def work(self) -> None:
        """Note a backward pass: the first one after an update begins another step."""
        if not self._updated or torch.compiler.is_compiling():
            return
        self._updated = False
        first, last = self._window.warm_up, self._window.warm_up + self._window.steps
        if self.taken in {first, last}:
            _wait_for_device()
        self._latest = time.perf_counter()
        if self.taken == first:
            self._began = self._latest
        self._counted = max(0, self.taken - first)
        if self.taken == last:
            self.write()
            self._stop()

    def write(self) -> None:
        """Write down how long the steps took that count."""
        cuda = torch.cuda.is_initialized()
        timing = Timing(
            taken=self.taken,
            steps=self._counted,
            seconds=self._latest - self._began if self._began is not None else 0.0,
            rank=_number("RANK", 0),
            threads=torch.get_num_threads(),
            device=torch.cuda.get_device_name() if cuda else None,
            torch=str(torch.__version__),
        )
        answer(self._control, TIMED, timing)

    def _stop(self) -> None:
        world = _number("WORLD_SIZE", 1)
        said = Reached("stop", _number("RANK", 0), world, self.taken, 0)
        answer(self._control, "reached", said)
        while True:
            time.sleep(0.01)


def _wait_for_device() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    elif torch.backends.mps.is_available():
        torch.mps.synchronize()


def _before(tell: Callable[[], None]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            tell()
            return original(*args, **kwargs)

        return call

    return make


def _after(tell: Callable[[], None]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            tell()
            return result

        return call

    return make


def _watch_errors(control: Path) -> None:
    """Write down which operation has no deterministic implementation, if that is what ends the process."""
    before = sys.excepthook

    def told(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        match = _NO_IMPLEMENTATION.search(str(error))
        if match:
            where = None
            while trace is not None:
                if is_users(trace.tb_frame.f_code.co_filename):
                    where = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
                trace = trace.tb_next
            answer(control, FAILED, Failure(summary=str(error).splitlines()[0], operation=match[1], where=where))
        before(kind, error, error.__traceback__)

    sys.excepthook = told


def _number(variable: str, otherwise: int) -> int:
    return int(os.environ.get(variable, otherwise))
