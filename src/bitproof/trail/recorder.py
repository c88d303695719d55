"""The recorder: what probes see, put together into steps.

A step is the work (one or more backward passes) and the update (one or more optimizer calls with no backward pass
between them). The next backward pass starts the next step; what is seen before it already belongs to that next step.
A step is written as soon as an update has ended, and written again if a further update joins it.
"""

import sys
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from bitproof.trail.capture import Capture
from bitproof.trail.generators import Generators
from bitproof.trail.journal import Journal
from bitproof.trail.looking import Entries, Entry, Looker, Seen, address, tensor_leaves
from bitproof.trail.names import Registry
from bitproof.trail.records import Event, EventKind, Sample, TensorRow
from bitproof.trail.site import user_line
from bitproof.trail.window import Window, Yielded

if TYPE_CHECKING:
    from types import FrameType


class Recorder:
    """Puts what the probes see into steps and writes them.

    Args:
        journal: writes them.
    """

    def __init__(self, journal: Journal) -> None:
        self.registry = Registry()
        self.on_boundary: Callable[[int, int, int], None] | None = None
        """Called after each backward pass (step, micro-step, 0) and each update (step, 0, updates so far)."""
        self.on_work: Callable[[int], None] | None = None
        """Called when the work of a step begins, before its first backward pass."""
        self.on_first_state: Callable[[dict[str, int]], None] | None = None
        """Called once, with the roots of the first state, before the first update."""
        self.step = 0
        self._journal = journal
        self._generators = Generators(self._journal.keep_state)
        self._looker = Looker(self.note_unseen)
        self._capture = Capture(self.registry, self._looker, self._optimizer_died)
        self._window = Window()
        self._last: Window | None = None
        self._latest: Window | None = None
        self._carried: Window | None = None
        self._scaler: dict[str, Any] | None = None
        self._updates = 0
        self._depth = 0
        self._backward = 0
        self._asked = False
        """The generators of the step were read for the fetch that goes on."""
        self._skip_note: set[str] = set()

    @property
    def in_backward(self) -> bool:
        """Whether a backward pass is running."""
        return self._backward > 0

    @property
    def updates_seen(self) -> int:
        """Count the updates that have begun in this process."""
        return self._updates

    # --- what enters -------------------------------------------------------------------------------------------

    def loader_asked(self) -> None:
        """Note that a data loader is about to fetch a batch."""
        self._asked = self._window.rng_start is None
        self._activity()

    def loader_had_none(self) -> None:
        """Note that the loader's pass was over: the next one draws its order before it fetches, and the step starts there."""
        if self._asked:
            self._window.rng_start = None

    def loader_batch(self, batch: Any, indices: list[Sample] | None) -> None:
        """Note a batch that a data loader yielded."""
        # Where a module shows the batch, its first input is told apart by sample, and this one need not be.
        by_sample = self._latest is None or not any(micro.inputs for micro in self._latest.micros)
        leaves: list[Seen] = []
        storages = {}
        for name, tensor in tensor_leaves(batch):
            leaves.append(self._looker.see(name, tensor, by_sample=by_sample and not leaves))
            where = address(tensor)
            if where:
                storages[where] = weakref.ref(tensor.untyped_storage())
        self._window.yielded.append(Yielded(leaves, storages, indices))

    def module_called(self, module: nn.Module, names: list[str], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note a module that is called, not from inside another one, with gradients enabled."""
        self._settle()
        self._activity()
        window = self._window
        model = self.registry.model_of(module)
        if window.rng_forward is None:
            window.rng_forward = self._generators.read()
        self._capture.model(window, model, module.training)
        micro = window.open_micro
        if window.micros and not micro.rng:
            # A leg may join here, in the middle of an accumulation window.
            micro.rng = self._generators.read()
            micro.buffers = self._capture.buffers_of(model)
        if not module.training and micro.inputs and not micro.from_eval:
            return
        named = [(names[i] if i < len(names) else f"arg{i}", value) for i, value in enumerate(args)]
        given = list(tensor_leaves(dict([*named, *kwargs.items()])))
        outside = [(name, tensor) for name, tensor in given if not window.was_produced(tensor)]
        if module.training and micro.from_eval and len(outside) == len(given):
            # An evaluation that forgot no_grad came before, and nothing of it goes in here: it is no part of the step.
            micro.drop_inputs()
        micro.from_eval = not module.training
        for name, tensor in outside:
            if micro.add_input(self._looker.see(name, tensor, by_sample=not micro.inputs)):
                window.match(tensor)

    def module_returned(self, output: Any) -> None:
        """Note what an outermost module call returned."""
        self._window.note_produced(output)

    def gradient_asked(self, outputs: Iterable[torch.Tensor]) -> None:
        """Note a call of ``torch.autograd.grad``: the work of a step, if the script then sets gradients by hand."""
        if self._backward:
            return
        self._settle()
        if not self._window.micros and self._depth == 0:
            self._work_begins()
            self._window.open_micro.asked = [weakref.ref(output) for output in outputs if output.numel() == 1]

    def backward_begins(self, roots: Iterable[torch.Tensor]) -> None:
        """Note the start of a backward pass."""
        self._backward += 1
        if self._backward > 1:
            return
        self._settle()
        window = self._window
        if not window.micros and self._depth == 0:
            self._work_begins()
        self._end_micro(roots)

    def _end_micro(self, roots: Iterable[torch.Tensor]) -> None:
        window = self._window
        micro = window.open_micro
        for i, root in enumerate(roots):
            micro.losses.append(self._looker.see(f"loss{i or ''}", root.detach()))
            if i == 0 and root.numel() == 1:
                micro.loss_value = float(root.detach())
        window.end_micro()

    def backward_ends(self) -> None:
        """Note the end of a backward pass."""
        self._backward -= 1
        if self._backward:
            return
        if self._depth == 0 and self._window.updates:
            self._close()
        elif self._depth == 0 and self.on_boundary is not None:
            self.on_boundary(self.step + 1, len(self._window.micros), 0)

    # --- the update ----------------------------------------------------------------------------------------------

    def update_begins(self, optimizer: torch.optim.Optimizer, *, closure: bool) -> None:
        """Note an optimizer that is about to change weights.

        Args:
            optimizer: it.
            closure: it will call forward and backward itself, so the gradients do not exist yet.
        """
        self._settle(1)
        self._depth += 1
        self._updates += 1
        if closure and self._depth == 1 and not self._window.micros:
            self._work_begins()
        window = self._joined() if self._depth == 1 else self._window
        if window.open_micro.asked is not None and not window.micros:
            self._end_micro([tensor for ref in window.open_micro.asked if (tensor := ref()) is not None])
        self._capture_state(window, optimizer)
        if not closure:
            self._capture.gradients(window, optimizer)

    def closure_returned(self, optimizer: torch.optim.Optimizer) -> None:
        """Note that a closure has computed gradients; the first time counts."""
        window = self._window
        if not window.facets.get("gradients"):
            # Models that the closure was the first to call have names only now.
            self._capture.drop_nameless(window, optimizer)
            self._capture_state(window, optimizer)
            self._capture.gradients(window, optimizer)

    def update_ends(self) -> None:
        """Note that an optimizer has changed weights."""
        self._depth -= 1
        if self._depth == 0:
            self._count_update(skipped=False)

    def _settle(self, entering: int = 0) -> None:
        """Leave updates that an exception has ended: PyTorch calls no hook then.

        Args:
            entering: optimizers on the stack that have not been counted yet.
        """
        if not self._depth:
            return
        self._depth = min(self._depth, _steps_on_stack() - entering)
        if not self._depth and self._carried is not None:
            self._window, self._carried = self._carried, None

    def update_skipped(self, optimizer: torch.optim.Optimizer) -> None:
        """Note an update that the gradient scaler did not let through."""
        window = self._joined()
        self._capture_state(window, optimizer)
        self._capture.gradients(window, optimizer)
        self._count_update(skipped=True)

    def scaler_steps(self, state: dict[str, Any] | None) -> None:
        """Note a gradient scaler's state before the update that it is about to let through or skip."""
        self._scaler = state

    def mark_skipped(self) -> None:
        """Note, after the fact, that the latest update was skipped inside a fused optimizer."""
        if self._latest is not None and not self._latest.skipped:
            self._latest.skipped = True
            self._journal.write(self._latest)

    def _work_begins(self) -> None:
        """Leave the previous step: no further update joins it."""
        if self.on_work is not None:
            self.on_work(self.step + 1)
        self._last = None

    def _joined(self) -> Window:
        """Return the step that an update belongs to: the previous one if no work began since."""
        if self._last is not None:
            # What was seen since the previous update belongs to the next step, which starts again after this one.
            self._window, self._carried = self._last, self._window
        return self._window

    def _count_update(self, *, skipped: bool) -> None:
        window = self._window
        window.updates += 1
        window.skipped |= skipped
        if not self._backward:
            self._close()

    def _close(self) -> None:
        window = self._window
        if not window.number:
            window.number = self.step + 1
        self._journal.write(window)
        self.step = window.number
        self._latest = self._last = window
        self._window = self._carried or Window(yielded=window.yielded)
        self._carried = None
        if self.on_boundary is not None:
            self.on_boundary(window.number, 0, window.updates)

    def _capture_state(self, window: Window, optimizer: torch.optim.Optimizer) -> None:
        self._capture.state(window, optimizer, self._scaler)
        if self.step == 0 and self.on_first_state is not None and window is self._window:
            self.on_first_state(self._journal.roots(window))
            self.on_first_state = None

    def _activity(self) -> None:
        if self._window.rng_start is None:
            self._window.rng_start = self._generators.read()

    # --- what is looked at and written in between ----------------------------------------------------------------

    def entry(self, tensor: torch.Tensor | None) -> Entry:
        """Return a tensor's kind, digest and sketch; kind ``unseen`` if it has no bytes to look at."""
        return self._looker.entry(tensor)

    def row(self, facet: str, entries: Entries) -> TensorRow:
        """Turn a facet's entries into a row, storing its layout if it is a new one."""
        return self._journal.row(facet, entries)[0]

    @property
    def now(self) -> tuple[int, int]:
        """Steps of this leg that are complete, and backward passes of the next one."""
        return self.step, len(self._window.micros)

    def event(
        self,
        kind: EventKind,
        data: dict[str, Any],
        saved: TensorRow | None = None,
        *,
        at: tuple[int, int] | None = None,
    ) -> None:
        """Record that something happened, now or at an earlier step, with the user's line."""
        self._journal.event(Event(*(at or self.now), kind, data, user_line(), saved))

    def on_write_error(self, told: Callable[[Exception], None]) -> None:
        """Let training go on if the trail cannot be written any more, and tell of it once; else that is raised."""
        self._journal.on_write_error = told

    def note_unseen(self, what: str) -> None:
        """Say once that something could not be seen."""
        if what not in self._skip_note:
            self._skip_note.add(what)
            self.event("not-observed", {"what": what})

    @property
    def early_events(self) -> list[Event]:
        """Events seen so far by a process that has taken no step."""
        return list(self._journal.early)

    # --- the end ---------------------------------------------------------------------------------------------------

    def _optimizer_died(self, _reference: Any) -> None:
        self._finish_state()

    def _finish_state(self) -> None:
        """Look at the state after the last step, as far as its tensors are still alive."""
        if self._journal.is_open and self._latest is not None:
            after = self._capture.once_more(self._latest, self.step + 1)
            if after.facets:
                self._journal.write_final(after)

    def finish(self, kind: EventKind = "ended") -> None:
        """Write the state after the last step and close the file."""
        if self._journal.is_open:
            self._finish_state()
            self.event(kind, {})
            self._journal.close()
        # Somebody may have kept a function of PyTorch while it was watched: what it tells now goes nowhere.
        for name in _HEARD:
            setattr(self, name, _ignore)

    def after_fork(self) -> None:
        """Start anew in a forked child, leaving the parent's file alone."""
        self._journal.after_fork()
        self._window, self._last, self._latest, self._carried, self.step = Window(), None, None, None, 0
        self._generators = Generators(self._journal.keep_state)
        self._depth = self._backward = 0


_HEARD = (
    "loader_asked",
    "loader_had_none",
    "loader_batch",
    "module_called",
    "module_returned",
    "gradient_asked",
    "backward_begins",
    "backward_ends",
    "update_begins",
    "closure_returned",
    "update_ends",
    "update_skipped",
    "scaler_steps",
    "mark_skipped",
    "event",
    "after_fork",
)


def _ignore(*_args: object, **_kwargs: object) -> None:
    """Hear nothing."""


_STEP_CODE = torch.optim.Optimizer.profile_hook_step(lambda: None).__code__
"""The code that PyTorch puts around each optimizer's step."""


def _steps_on_stack() -> int:
    """Count the optimizer steps that this thread is in."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  # the documented way to a frame
    count = 0
    while frame is not None:
        count += frame.f_code is _STEP_CODE
        frame = frame.f_back
    return count
