"""Evaluation between steps: whether it draws from the stream that training draws from.

An evaluation is what loaders yield and modules compute while gradients are off. A loader that is iterated draws one
seed from torch's generator whatever it does; that alone is no finding, a shuffle or noise is.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from bitproof.compare.mersenne import shift
from bitproof.doctor.watch.watch import Watch
from bitproof.fingerprint import digest_rows
from bitproof.trail.generators import TorchReader, torch_state
from bitproof.trail.looking import tensor_leaves
from bitproof.trail.probes.patching import wrap
from bitproof.trail.site import user_line

SEED_DRAWS = 2
"""32-bit draws of the seed that each of a loader's iterators takes."""
_MOST_ROWS = 256
_MOST_SAID = 8


def attach(watch: Watch) -> None:
    """Watch evaluations."""
    evaluation = _Evaluation(watch)
    wrap(DataLoader, "__iter__", evaluation.iterating)
    base = torch.utils.data.dataloader._BaseDataLoaderIter  # noqa: SLF001
    wrap(base, "__next__", evaluation.fetching)
    wrap(nn.Module, "__call__", evaluation.calling)
    watch.on_step.append(evaluation.step_taken)


@dataclass
class _Section:
    """One evaluation, as it goes on.

    Args:
        begun: the generator's digest when it began.
        loader: whether it reads a loader.
        seed: the generator's when it began.
    """

    begun: int
    loader: bool
    seed: int = field(default_factory=torch.initial_seed)
    drew: str | None = None
    """Where it drew."""
    rows: list[int] = field(default_factory=list)
    """Digests of the samples that modules were given in it."""


class _Evaluation:
    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._reader = TorchReader()
        self._inside = threading.local()
        self._last = 0
        """The generator's digest after the last activity of the open section."""
        self._open: _Section | None = None
        self._ended: list[_Section] = []
        """Sections that drew, until training goes on."""
        self._loose = 0
        """Sections so far without a loader."""
        self._said = 0

    def step_taken(self, _step: int) -> None:
        """Leave the evaluation: a step was taken."""
        self._training()

    def _training(self) -> None:
        """Leave the evaluation, as training goes on; say that it drew, unless the generator was put back or seeded anew since."""
        self._end()
        if self._ended:
            now = self._reader.read()
            for section in self._ended:
                going_on = section.begun != now and section.seed == torch.initial_seed()
                if going_on and self._said < _MOST_SAID:
                    self._said += 1
                    facts = {"drew": True, "loader": section.loader, "rows": section.rows}
                    self._watch.say("evaluation", facts, section.drew)
            self._ended.clear()

    def _end(self) -> None:
        if self._open is not None and self._open.drew is not None:
            self._ended.append(self._open)
        self._open = None

    def iterating(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def iterate(loader: Any) -> Any:
            if torch.is_grad_enabled():
                self._training()
                return original(loader)
            self._end()
            self._enter(loader=True)
            before = torch_state()
            iterator = original(loader)
            self._last = self._reader.read()
            if shift(before, torch_state(), 4 * SEED_DRAWS) not in {0, SEED_DRAWS}:
                self._note_draw()
            return iterator

        return iterate

    def fetching(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def following(iterator: Any) -> Any:
            if torch.is_grad_enabled():
                self._training()
                return original(iterator)
            self._enter(loader=True)
            try:
                batch = original(iterator)
            except StopIteration:
                self._leave()
                self._end()
                raise
            self._leave()
            return batch

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
            if module.training and self._open is None:
                return original(module, *args, **kwargs)
            self._inside.module = True
            section = self._enter(loader=False)
            _note_rows(section, [*args, *kwargs.values()])
            try:
                return original(module, *args, **kwargs)
            finally:
                self._inside.module = False
                self._leave()

        return call

    def _enter(self, *, loader: bool) -> _Section:
        now = self._reader.read()
        if self._open is None:
            self._open = _Section(now, loader)
            self._loose += not loader
            self._watch.say_once("evaluation", {"drew": False, "loader": loader, "rows": []})
        elif now != self._last:
            self._note_draw()
        self._last = now
        return self._open

    def _leave(self) -> None:
        now = self._reader.read()
        if now != self._last:
            self._note_draw()
        self._last = now

    def _note_draw(self) -> None:
        # What goes on without gradients in most steps belongs to training: a teacher, a rollout.
        section = self._open
        if section is not None and section.drew is None and (section.loader or 2 * self._loose <= self._watch.step):
            section.drew = user_line() or "?"


def _note_rows(section: _Section, given: list[Any]) -> None:
    first = next((tensor for _, tensor in tensor_leaves(given)), None)
    if first is not None and first.layout is torch.strided and first.dim() and len(section.rows) < _MOST_ROWS:
        section.rows += digest_rows(first[:_MOST_ROWS])
