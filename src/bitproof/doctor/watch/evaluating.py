"""Evaluation between steps: whether it draws from the stream that training draws from.

An evaluation is what loaders yield and modules compute while gradients are off. A loader that is iterated draws one
seed from torch's generator whatever it does; that alone is no finding, a shuffle or noise is.
"""

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from bitproof.compare.mersenne import shift
from bitproof.doctor.watch.watch import Watch
from bitproof.trail.generators import TorchReader
from bitproof.trail.probes.patching import wrap
from bitproof.trail.site import user_line

_SEED_DRAWS = 2
"""32-bit draws of the seed that each of a loader's iterators takes."""


def attach(watch: Watch) -> None:
    """Watch evaluations."""
    evaluation = _Evaluation(watch)
    wrap(DataLoader, "__iter__", evaluation.iterating)
    base = torch.utils.data.dataloader._BaseDataLoaderIter  # noqa: SLF001
    wrap(base, "__next__", evaluation.fetching)
    wrap(nn.Module, "__call__", evaluation.calling)
    watch.on_step.append(evaluation.step_taken)


class _Evaluation:
    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._reader = TorchReader()
        self._inside = threading.local()
        self._last: int | None = None
        """The generator's digest after the last activity of this evaluation; None between evaluations."""
        self._loader = False
        """Whether a loader has been started in it."""
        self._loose = 0
        """Evaluations so far without a loader."""
        self._begun: int | None = None
        """The generator's digest when this evaluation began."""
        self._drew: str | None = None
        """Where it drew."""

    def step_taken(self, _step: int) -> None:
        """Leave the evaluation: a step was taken."""
        self._training()

    def _training(self) -> None:
        """Leave the evaluation, as training goes on; say that it drew, unless it put the generator back."""
        if self._drew is not None and self._reader.read() != self._begun:
            self._watch.say_once("evaluation", {"drew": True}, self._drew)
        self._last, self._loader, self._drew = None, False, None

    def iterating(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def iterate(loader: Any) -> Any:
            if torch.is_grad_enabled():
                self._training()
                return original(loader)
            self._loader = True
            self._enter()
            before = self._reader.state()
            iterator = original(loader)
            if shift(before, self._reader.state(), 4 * _SEED_DRAWS) not in {0, _SEED_DRAWS}:
                self._note_draw()
            self._last = self._reader.read()
            return iterator

        return iterate

    def fetching(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def following(iterator: Any) -> Any:
            if torch.is_grad_enabled():
                self._training()
                return original(iterator)
            self._enter()
            try:
                return original(iterator)
            finally:
                self._leave()

        return following

    def calling(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            # First, so that torch.compile traces nothing but the original call.
            if torch.compiler.is_compiling():
                return original(module, *args, **kwargs)
            if getattr(self._inside, "module", False):
                return original(module, *args, **kwargs)
            if torch.is_grad_enabled():
                self._training()
                return original(module, *args, **kwargs)
            if module.training and not self._loader:
                return original(module, *args, **kwargs)
            self._inside.module = True
            self._enter()
            try:
                return original(module, *args, **kwargs)
            finally:
                self._inside.module = False
                self._leave()

        return call

    def _enter(self) -> None:
        now = self._reader.read()
        if self._last is None:
            self._begun = now
            self._loose += not self._loader
            self._watch.say_once("evaluation", {"drew": False})
        elif now != self._last:
            self._note_draw()
        self._last = now

    def _leave(self) -> None:
        now = self._reader.read()
        if now != self._last:
            self._note_draw()
        self._last = now

    def _note_draw(self) -> None:
        # What goes on without gradients in most steps belongs to training: a teacher, a rollout.
        if self._drew is None and (self._loader or 2 * self._loose <= self._watch.step):
            self._drew = user_line() or "?"
