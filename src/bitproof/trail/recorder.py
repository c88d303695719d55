"""The recorder: what probes see, put together into steps.

A step is the work (one or more backward passes) and the update (one or more optimizer calls with no backward pass
between them). The next backward pass starts the next step; what is seen before it already belongs to that next step.
A step is written as soon as an update has ended, and written again if a further update joins it.
"""

import math
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from bitproof.fingerprint import (
    ABSENT,
    combine,
    digest_all,
    digest_and_sketch,
    digest_bytes,
    digest_rows,
    digest_tensor,
    digest_text,
)
from bitproof.trail.file import LegWriter
from bitproof.trail.generators import Generators
from bitproof.trail.names import Model, Registry
from bitproof.trail.records import (
    Event,
    EventKind,
    Layout,
    MicroHead,
    StepDetail,
    StepHead,
    TensorRow,
    pack_digests,
)
from bitproof.trail.settings import Settings
from bitproof.trail.site import user_line

if TYPE_CHECKING:
    from types import FrameType

KEEP_LATEST = 1_000
"""Steps whose details are always kept."""
_FORGET_EVERY = 256
_EARLY_EVENTS = 10_000
_MOST_ROWS = 4_096
_MOST_BATCHES = 256
_MOST_INPUTS = 1_024
_MOST_MICROS = 4_096
_NO_SKETCH = bytes(24)
_SKETCHED = frozenset({"weights", "gradients", "optimizer", "buffers", "hyperparameters", "scaler", "saved"})

Entries = dict[str, tuple[str, int, bytes]]
"""Name → kind, digest, sketch."""
Look = tuple[Entries, str, torch.Tensor]
"""A tensor to look at, and where what is seen goes."""
_AWAITED = ("unseen", ABSENT, b"")
_PLAIN = (torch.Tensor, nn.Parameter)


@dataclass(slots=True, eq=False)
class Seen:
    """One tensor or value that entered a module from outside."""

    name: str
    kind: str
    digest: int
    samples: list[int]


@dataclass(slots=True, eq=False)
class Yielded:
    """One batch that a data loader handed out."""

    leaves: list[Seen]
    storages: dict[int, "weakref.ref[torch.UntypedStorage]"]
    """By address; one that has died gave its address away."""
    indices: list[int] | None


@dataclass(slots=True)
class Micro:
    """One backward pass, as it is put together."""

    inputs: list[Seen] = field(default_factory=list)
    taken: set[str] = field(default_factory=set)
    """The names of the inputs."""
    from_eval: bool = False
    used: list[Yielded] = field(default_factory=list)
    losses: list[Seen] = field(default_factory=list)
    asked: list["weakref.ref[torch.Tensor]"] | None = None
    """What ``torch.autograd.grad`` was called on."""
    loss_value: float | None = None
    loader: int | None = None
    indices: list[int] | None = None
    buffers: Entries = field(default_factory=dict)
    rng: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Window:
    """One step, as it is put together."""

    rng_start: dict[str, int] | None = None
    rng_forward: dict[str, int] | None = None
    micros: list[Micro] = field(default_factory=list)
    open_micro: Micro = field(default_factory=Micro)
    models: dict[int, Model] = field(default_factory=dict)
    eval_models: set[int] = field(default_factory=set)
    facets: dict[str, Entries] = field(default_factory=dict)
    updates: int = 0
    skipped: bool = False
    number: int = 0
    rate: float | None = None
    yielded: deque[Yielded] = field(default_factory=lambda: deque(maxlen=_MOST_BATCHES))
    produced: dict[int, "weakref.ref[torch.UntypedStorage]"] = field(default_factory=dict)
    """Storages of what outermost modules returned, by identity."""
    most_produced: int = _MOST_BATCHES
    """When to look for dead ones among them."""
    states: list[tuple[str, int, bytes]] = field(default_factory=list)
    """Of generators that had changed by this step."""
    remembered: list[tuple[str, str, "weakref.ref[torch.Tensor]"]] = field(default_factory=list)
    """The tensors of the state, so that it can be looked at once more after the last step."""

    def facet(self, name: str) -> Entries:
        """Return the facet's entries (name → kind, digest, sketch), to add to."""
        return self.facets.setdefault(name, {})


class Recorder:
    """Puts what the probes see into steps and writes them.

    Args:
        settings: where and how to record.
        identify: gives this process's (rank, world size).
        describe: gives the facts that are stored with the leg, the environment among them.
    """

    def __init__(
        self, settings: Settings, identify: Callable[[], tuple[int, int]], describe: Callable[[], dict[str, Any]]
    ) -> None:
        self.settings = settings
        self.registry = Registry()
        self.on_boundary: Callable[[int, int, int], None] | None = None
        """Called after each backward pass (step, micro-step, 0) and each update (step, 0, updates so far)."""
        self.on_work: Callable[[int], None] | None = None
        """Called when the work of a step begins, before its first backward pass."""
        self.on_write_error: Callable[[Exception], None] | None = None
        """Called once if the trail cannot be written any more; without it, that is raised where the training is."""
        self.on_first_state: Callable[[dict[str, int]], None] | None = None
        """Called once, with the roots of the first state, before the first update."""
        self.step = 0
        self._identify = identify
        self._describe = describe
        self._writer: LegWriter | None = None
        self._window = Window()
        self._last: Window | None = None
        self._latest: Window | None = None
        self._carried: Window | None = None
        self._scaler: dict[str, Any] | None = None
        self._updates = 0
        self._depth = 0
        self._backward = 0
        self._layouts: dict[Layout, tuple[int, int]] = {}
        self._layout_count = 0
        self._lock = threading.RLock()
        """Held while writing: a save in the background, or the garbage collector, may come in between."""
        self._early: deque[Event] = deque(maxlen=_EARLY_EVENTS)
        self._states: list[tuple[str, int, bytes]] = []
        self._generators = Generators(self._keep_state)
        self._optimizers: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._optimizer_names: dict[str, int] = {}
        self._rates: dict[str, tuple[str, Entries]] = {}
        self._started = time.monotonic()
        self._skip_note: set[str] = set()
        self._deaths: list[weakref.ref[Any]] = []

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
        self._activity()

    def loader_batch(self, batch: Any, indices: list[int] | None) -> None:
        """Note a batch that a data loader yielded."""
        # Where a module shows the batch, its first input is told apart by sample, and this one need not be.
        by_sample = self._latest is None or not any(micro.inputs for micro in self._latest.micros)
        leaves: list[Seen] = []
        storages = {}
        for name, tensor in _tensor_leaves(batch):
            leaves.append(self._see(name, tensor, by_sample=by_sample and not leaves))
            address = _address(tensor)
            if address:
                storages[address] = weakref.ref(tensor.untyped_storage())
        self._window.yielded.append(Yielded(leaves, storages, indices))

    def module_called(self, module: nn.Module, names: list[str], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note a module that is called, not from inside another one, with gradients enabled."""
        self._settle()
        self._activity()
        window = self._window
        model = self.registry.model_of(module)
        if window.rng_forward is None:
            window.rng_forward = self._generators.read()
        self._see_model(model, module.training)
        micro = window.open_micro
        if window.micros and not micro.rng:
            # A leg may join here, in the middle of an accumulation window.
            micro.rng = self._generators.read()
            micro.buffers = self._buffers_of(model)
        if not module.training and micro.inputs and not micro.from_eval:
            return
        named = [(names[i] if i < len(names) else f"arg{i}", value) for i, value in enumerate(args)]
        given = list(_tensor_leaves(dict([*named, *kwargs.items()])))
        outside = [(name, tensor) for name, tensor in given if not self._was_produced(tensor)]
        if module.training and micro.from_eval and len(outside) == len(given):
            # An evaluation that forgot no_grad came before, and nothing of it goes in here: it is no part of the step.
            micro.inputs, micro.used, micro.taken = [], [], set()
        micro.from_eval = not module.training
        for name, tensor in outside:
            if len(micro.inputs) == _MOST_INPUTS:
                # A loop without steps goes on for ever: the rest is folded into one.
                last = micro.inputs[-1]
                last.name, last.digest, last.samples = (
                    "further",
                    combine([last.digest, self._see("", tensor).digest]),
                    [],
                )
                continue
            unique = _unique(name, micro.taken)
            micro.taken.add(unique)
            micro.inputs.append(self._see(unique, tensor, by_sample=not micro.inputs))
            self._match(micro, tensor)

    def module_returned(self, output: Any) -> None:
        """Note what an outermost module call returned."""
        window = self._window
        for _, tensor in _tensor_leaves(output):
            if _address(tensor):
                storage = tensor.untyped_storage()
                window.produced[id(storage)] = weakref.ref(storage)
        if len(window.produced) > window.most_produced:
            window.produced = {key: ref for key, ref in window.produced.items() if ref() is not None}
            window.most_produced = 2 * len(window.produced) + _MOST_BATCHES

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
            micro.losses.append(self._see(f"loss{i or ''}", root.detach()))
            if i == 0 and root.numel() == 1:
                micro.loss_value = float(root.detach())
        pending = window.yielded
        fresh = [y for y in pending if y not in micro.used]
        if not micro.used and not micro.inputs:
            micro.used = fresh
        elif not micro.used and len(fresh) == 1:
            # The model was given something made from it: where the samples come from is known all the same.
            micro.indices = fresh[0].indices
        if pending:
            micro.loader = combine(leaf.digest for y in (micro.used or pending) for leaf in y.leaves)
        left = [y for y in pending if y not in micro.used] if micro.used else []
        window.yielded = deque(left, _MOST_BATCHES)
        window.micros.append(micro)
        if len(window.micros) > _MOST_MICROS:
            del window.micros[0]  # a window of this length has updates that cannot be seen
        window.open_micro = Micro()

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
            self._capture_gradients(window, optimizer)

    def closure_returned(self, optimizer: torch.optim.Optimizer) -> None:
        """Note that a closure has computed gradients; the first time counts."""
        window = self._window
        if not window.facets.get("gradients"):
            # Models that the closure was the first to call have names only now.
            nameless = f"{self._optimizer_name(optimizer)}/group"
            for facet in ("weights", "optimizer"):
                entries = window.facet(facet)
                for name in [name for name in entries if name.startswith(nameless) or f"/{nameless}" in name]:
                    del entries[name]
            window.remembered = [known for known in window.remembered if nameless not in known[1]]
            self._capture_state(window, optimizer)
            self._capture_gradients(window, optimizer)

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
        self._capture_gradients(window, optimizer)
        self._count_update(skipped=True)

    def scaler_steps(self, state: dict[str, Any] | None) -> None:
        """Note a gradient scaler's state before the update that it is about to let through or skip."""
        self._scaler = state

    def mark_skipped(self) -> None:
        """Note, after the fact, that the latest update was skipped inside a fused optimizer."""
        if self._latest is not None and not self._latest.skipped:
            self._latest.skipped = True
            self._write(self._latest)

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
        self._write(window)
        self.step = window.number
        self._latest = self._last = window
        self._window = self._carried or Window(yielded=window.yielded)
        self._carried = None
        if self.on_boundary is not None:
            self.on_boundary(window.number, 0, window.updates)

    # --- looking at state ------------------------------------------------------------------------------------------

    def _activity(self) -> None:
        if self._window.rng_start is None:
            self._window.rng_start = self._generators.read()

    def _see_model(self, model: Model, training: bool) -> None:
        window = self._window
        key = id(model)
        if key in window.models and not (training and key in window.eval_models):
            return
        window.models[key] = model
        (window.eval_models.discard if training else window.eval_models.add)(key)
        window.facet("buffers").update(self._buffers_of(model))
        window.remembered += [("buffers", named.name, named.tensor) for named in model.buffers]
        mode = window.facet("mode")
        for name, reference in model.modules:
            module = reference()
            if module is not None:
                mode[name or type(module).__name__] = ("value", 2 if module.training else 1, b"")

    def _buffers_of(self, model: Model) -> Entries:
        alive = [(named.name, named.tensor()) for named in model.buffers]
        if any(tensor is None for _, tensor in alive):
            # Module.to() and its like put other buffers in place, and no hook tells.
            self.registry.refresh(model)
            alive = [(named.name, named.tensor()) for named in model.buffers]
        return {name: self.entry(tensor) for name, tensor in alive if tensor is not None}

    def _capture_state(self, window: Window, optimizer: torch.optim.Optimizer) -> None:
        name = self._optimizer_name(optimizer)
        looks = self._weights_of_models(window)
        weights, moments = window.facet("weights"), window.facet("optimizer")
        remembered = window.remembered
        prefix = f"{name}/"
        for g, group in enumerate(optimizer.param_groups):
            for i, parameter in enumerate(group["params"]):
                known = self.registry.name_of(parameter)
                own = known or f"{name}/group{g}.{i}"
                if own not in weights:
                    weights[own] = _AWAITED
                    looks.append((weights, own, parameter))
                    remembered.append(("weights", own, weakref.ref(parameter)))
                state = optimizer.state.get(parameter)
                if state:
                    for key, value in state.items():
                        entry = f"{prefix}{own}.{key}"
                        if isinstance(value, torch.Tensor):
                            looks.append((moments, entry, value))
                            remembered.append(("optimizer", entry, weakref.ref(value)))
                        else:
                            moments[entry] = self._value(value)
        state_of: dict[Any, Any] = optimizer.state
        for key, value in state_of.items():
            if not isinstance(key, torch.Tensor):
                moments[f"{prefix}{key}"] = self._value(value)
        self._look(looks)
        self._capture_groups(window, name, optimizer)
        if self._scaler is not None and "scaler" not in window.facets:
            scaler = window.facet("scaler")
            scaler |= {key: plain_entry(value) for key, value in self._scaler.items()}
        if self.step == 0 and self.on_first_state is not None and window is self._window:
            self.on_first_state({facet: self._root(facet, entries) for facet, entries in window.facets.items()})
            self.on_first_state = None

    def _weights_of_models(self, window: Window) -> list[Look]:
        looks: list[Look] = []
        weights = window.facet("weights")
        for model in window.models.values():
            for named in model.parameters:
                tensor = named.tensor()
                if tensor is not None and named.name not in weights:
                    weights[named.name] = _AWAITED
                    looks.append((weights, named.name, tensor))
                    window.remembered.append(("weights", named.name, named.tensor))
        return looks

    def _look(self, looks: list[Look]) -> None:
        """Look at many tensors at once, which several threads can do."""
        plain = [look for look in looks if type(look[2]) in _PLAIN and look[2].layout is torch.strided]
        digests = digest_all([tensor for _, _, tensor in plain])
        for (entries, name, tensor), (digest, sketch) in zip(plain, digests, strict=True):
            entries[name] = (tensor_kind(tensor), digest, sketch)
        if len(plain) < len(looks):
            for entries, name, tensor in looks:
                if type(tensor) not in _PLAIN or tensor.layout is not torch.strided:
                    entries[name] = self.entry(tensor)

    def _capture_groups(self, window: Window, name: str, optimizer: torch.optim.Optimizer) -> None:
        groups = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
        shown = repr(groups)
        known = self._rates.get(name)
        if known is None or known[0] != shown or "tensor" in shown:
            entries = {
                f"{name}/group{i}.{key}": self._value(value)
                for i, group in enumerate(groups)
                for key, value in group.items()
            }
            known = self._rates[name] = (shown, entries)
        window.facet("hyperparameters").update(known[1])
        if window.rate is None and groups and "lr" in groups[0]:
            rate = groups[0]["lr"]  # None where the optimizer chooses its own
            window.rate = float(rate) if isinstance(rate, (int, float, torch.Tensor)) else None

    def _capture_gradients(self, window: Window, optimizer: torch.optim.Optimizer) -> None:
        name = self._optimizer_name(optimizer)
        gradients = window.facet("gradients")
        looks: list[Look] = []
        for g, group in enumerate(optimizer.param_groups):
            for i, parameter in enumerate(group["params"]):
                own = self.registry.name_of(parameter) or f"{name}/group{g}.{i}"
                if own not in gradients:
                    gradient = parameter.grad
                    gradients[own] = _AWAITED if gradient is not None else self.entry(None)
                    if gradient is not None:
                        looks.append((gradients, own, gradient))
        self._look(looks)

    def _optimizer_name(self, optimizer: torch.optim.Optimizer) -> str:
        name = self._optimizers.get(optimizer)
        if name is None:
            kind = type(optimizer).__name__
            self._optimizer_names[kind] = count = self._optimizer_names.get(kind, 0) + 1
            name = self._optimizers[optimizer] = kind if count == 1 else f"{kind}#{count}"
            self._deaths.append(weakref.ref(optimizer, self._optimizer_died))
        return name

    def _see(self, name: str, tensor: torch.Tensor, *, by_sample: bool = False) -> Seen:
        kind, digest, _ = self.entry(tensor)
        samples: list[int] = []
        if by_sample and tensor.layout is torch.strided and tensor.dim() > 0 and 0 < tensor.shape[0] <= _MOST_ROWS:
            try:
                samples = digest_rows(tensor)
            except RuntimeError:  # it has no bytes of its own, and is seen as a whole
                samples = []
        return Seen(name, kind, digest, samples)

    def _match(self, micro: Micro, tensor: torch.Tensor) -> None:
        """Find the loader's batch that a module's input came from, and take its other tensors (labels) along."""
        address = _address(tensor)
        for yielded in self._window.yielded:
            storage = yielded.storages.get(address)
            if storage is not None and storage() is tensor.untyped_storage() and yielded not in micro.used:
                micro.used.append(yielded)

    def _was_produced(self, tensor: torch.Tensor) -> bool:
        if tensor.grad_fn is not None:
            return True
        if not self._window.produced or not _address(tensor):
            return False
        storage = tensor.untyped_storage()
        known = self._window.produced.get(id(storage))
        return known is not None and known() is storage

    def _value(self, value: Any) -> tuple[str, int, bytes]:
        if isinstance(value, torch.Tensor):
            return self.entry(value)
        if isinstance(value, (list, tuple, deque, dict)):
            parts = value.items() if isinstance(value, dict) else enumerate(value)
            digests = [d for key, v in parts for d in (digest_text(repr(key)), self._value(v)[1])]
            return "value", combine([digest_text(type(value).__name__), *digests]), b""
        if isinstance(value, (np.ndarray, np.generic)) and not value.dtype.hasobject:
            return f"{value.dtype}{list(value.shape)}", digest_bytes(value.tobytes()), b""
        if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
            return plain_entry(value)
        if not callable(value):
            self.note_unseen(f"a {type(value).__qualname__} in an optimizer")
        return "value", digest_text(getattr(value, "__qualname__", type(value).__qualname__)), b""

    def entry(self, tensor: torch.Tensor | None) -> tuple[str, int, bytes]:
        """Return a tensor's kind, digest and sketch; kind ``unseen`` if it has no bytes to look at."""
        if tensor is None:
            return "none", ABSENT, b""
        try:
            if tensor.layout is torch.strided:
                return tensor_kind(tensor), *digest_and_sketch(tensor)
        except RuntimeError:  # it has no bytes of its own
            pass
        return self._unusual_entry(tensor)

    def _unusual_entry(self, tensor: torch.Tensor) -> tuple[str, int, bytes]:
        """Look at a tensor that is made of others; what cannot be seen is said."""
        if tensor.layout is torch.sparse_coo:
            whole = tensor.detach().coalesce()
            return tensor_kind(tensor), combine([digest_tensor(whole.indices()), digest_tensor(whole.values())]), b""
        if hasattr(tensor, "__tensor_flatten__"):
            # The protocol of torch.utils._python_dispatch, which DTensor, quantized and nested tensors follow.
            parts = [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
            inner = [self.entry(part) for part in parts if isinstance(part, torch.Tensor)]
            if inner and all(kind != "unseen" for kind, _, _ in inner):
                return f"{type(tensor).__name__}({', '.join(e[0] for e in inner)})", combine(e[1] for e in inner), b""
        self.note_unseen(f"the content of a {type(tensor).__name__} ({tensor.layout}, on {tensor.device.type})")
        return "unseen", ABSENT, b""

    def _keep_state(self, name: str, digest: int, state: bytes) -> None:
        self._states.append((name, digest, state))

    # --- writing ------------------------------------------------------------------------------------------------------

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
    ) -> Event:
        """Record that something happened, now or at an earlier step, with the user's line."""
        event = Event(*(at or self.now), kind, data, user_line(), saved)
        with self._lock:
            if self._writer is None:
                self._early.append(event)
            else:
                self._writer.events([event])
        return event

    def note_unseen(self, what: str) -> None:
        """Say once that something could not be seen."""
        if what not in self._skip_note:
            self._skip_note.add(what)
            self.event("not-observed", {"what": what})

    def row(self, facet: str, entries: Entries) -> TensorRow:
        """Turn a facet's entries into a row, storing its layout if it is a new one."""
        return self._row(facet, entries)[0]

    def _row(self, facet: str, entries: Entries) -> tuple[TensorRow, int]:
        """Return a facet's row and its root: a digest over the layout's names and kinds and all digests."""
        names = sorted(entries)
        found = [entries[name] for name in names]
        layout = Layout(facet, tuple(names), tuple([entry[0] for entry in found]))
        known = self._layouts.get(layout)
        if known is None:
            root = digest_text("\n".join((*layout.names, *layout.kinds)))
            with self._lock:
                self._layout_count = number = self._layout_count + 1
                known = self._layouts.setdefault(layout, (number, root))
                if self._writer is not None and known[0] == number:
                    self._writer.layout(number, layout)
        digests = pack_digests([entry[1] for entry in found])
        sketches = b"".join([entry[2] or _NO_SKETCH for entry in found]) if facet in _SKETCHED else b""
        return TensorRow(known[0], digests, sketches), digest_bytes(known[1].to_bytes(8, "little") + digests)

    def _root(self, facet: str, entries: Entries) -> int:
        return self._row(facet, entries)[1]

    def _write(self, window: Window) -> None:
        head, detail = self._head(window)
        writer = self._open()
        writer.step(head, detail)
        if head.step % _FORGET_EVERY == 0 and head.step > KEEP_LATEST + _FORGET_EVERY:
            last = head.step - KEEP_LATEST
            writer.forget_details(last - 2 * _FORGET_EVERY, last, self.settings.every)

    def _head(self, window: Window) -> tuple[StepHead, StepDetail]:
        rows, roots = [], {}
        for facet, entries in window.facets.items():
            row, roots[facet] = self._row(facet, entries)
            rows.append(row)
        micros, batches, losses, buffers = [], [], [], []
        for micro in window.micros:
            seen = self._batch_of(micro)
            batch, batch_root = self._row("batch", {s.name: (s.kind, s.digest, b"") for s in seen})
            loss, loss_root = self._row("loss", {s.name: (s.kind, s.digest, b"") for s in micro.losses})
            moved, moved_root = self._row("buffers", micro.buffers) if micro.rng else (None, None)
            batches.append(batch)
            losses.append(loss)
            buffers.append(moved)
            micros.append(
                MicroHead(
                    batch=batch_root if seen else None,
                    samples=pack_digests(next((s.samples for s in seen if s.samples), [])),
                    indices=[i for used in micro.used for i in used.indices or []] or micro.indices,
                    loss=loss_root if micro.losses else None,
                    loss_value=micro.loss_value,
                    loader=micro.loader,
                    buffers=moved_root,
                    rng=micro.rng,
                )
            )
        if any(m.batch is not None for m in micros):
            roots["batch"] = combine(m.batch or 0 for m in micros)
        if micros:
            roots["loss"] = combine(m.loss or 0 for m in micros)
        head = StepHead(
            step=window.number or self.step + 1,
            roots=roots,
            micros=micros,
            rng_start=window.rng_start or {},
            rng_forward=window.rng_forward or {},
            updates=window.updates,
            skipped=window.skipped,
            seconds=time.monotonic() - self._started,
            rate=window.rate if window.rate is None or math.isfinite(window.rate) else None,
        )
        # A step is written again when a further update joins it: with the states it was written with before.
        window.states += self._taken_states()
        return head, StepDetail(rows, batches, losses, buffers, window.states)

    def _batch_of(self, micro: Micro) -> list[Seen]:
        inputs = list(micro.inputs)
        known = {seen.digest for seen in inputs}
        taken = {seen.name for seen in inputs}
        for used in micro.used:
            for leaf in used.leaves:
                if leaf.digest not in known:
                    name = _unique(f"loader.{leaf.name}", taken)
                    taken.add(name)
                    inputs.append(Seen(name, leaf.kind, leaf.digest, leaf.samples))
        return inputs

    def _open(self) -> LegWriter:
        if self._writer is None:
            rank, world = self._identify()
            facts = self._describe() | {"rank": rank, "world_size": world}
            with self._lock:
                writer = LegWriter(self.settings.trail, self.settings.leg, rank, facts)
                writer.begin()
                for layout, (number, _) in self._layouts.items():
                    writer.layout(number, layout)
                writer.events(list(self._early))
                writer.commit()
                self._early.clear()
                writer.on_error = self.on_write_error
                self._writer = writer
        return self._writer

    def _taken_states(self) -> list[tuple[str, int, bytes]]:
        states, self._states = self._states, []
        return states

    def _optimizer_died(self, _reference: Any) -> None:
        self._finish_state()

    def _finish_state(self) -> None:
        """Look at the state after the last step, as far as its tensors are still alive."""
        if self._writer is None or self._latest is None:
            return
        window, gone = Window(number=self.step + 1), set()
        for facet, name, reference in self._latest.remembered:
            tensor = reference()
            if tensor is None:
                gone.add(facet)
            elif facet not in gone:
                window.facet(facet)[name] = self.entry(tensor)
        for facet in gone:
            window.facets.pop(facet, None)
        if not window.facets:
            return
        head, detail = self._head(window)
        self._writer.final(head, detail)

    def finish(self, kind: EventKind = "ended") -> None:
        """Write the state after the last step and close the file."""
        if self._writer is not None:
            self._finish_state()
            self.event(kind, {})
            with self._lock:
                self._writer.close()
                self._writer = None
        # Somebody may have kept a function of PyTorch while it was watched: what it tells now goes nowhere.
        for name in _HEARD:
            setattr(self, name, _ignore)

    @property
    def early_events(self) -> list[Event]:
        """Events seen so far by a process that has taken no step."""
        return list(self._early)

    def after_fork(self) -> None:
        """Start anew in a forked child, leaving the parent's file alone."""
        if self._writer is not None:
            self._writer.abandon()
        self._writer = None
        self._window, self._last, self._latest, self._carried, self.step = Window(), None, None, None, 0
        self._generators = Generators(self._keep_state)
        self._states.clear()
        self._lock = threading.RLock()  # another thread of the parent may have held it
        self._layouts.clear()
        self._early.clear()
        self._depth = self._backward = 0
        self._started = time.monotonic()


_HEARD = (
    "loader_asked",
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


def _tensor_leaves(tree: Any, name: str = "", above: tuple[int, ...] = ()) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors in nested mappings, sequences and data classes, with dotted names.

    Args:
        tree: what to look into.
        name: its name.
        above: identities of what holds it; what holds itself is looked into once.
    """
    if isinstance(tree, torch.Tensor):
        yield name or "0", tree
        return
    parts: Iterable[tuple[Any, Any]]
    if isinstance(tree, dict) or (hasattr(tree, "keys") and hasattr(tree, "__getitem__")):
        parts = ((key, tree[key]) for key in tree.keys())  # noqa: SIM118  # BatchEncoding iterates over something else
    elif isinstance(tree, (list, tuple)):
        parts = enumerate(tree)
    elif hasattr(tree, "__dataclass_fields__"):
        parts = ((key, getattr(tree, key, None)) for key in tree.__dataclass_fields__)
    else:
        return
    if id(tree) not in above:
        for key, value in parts:
            yield from _tensor_leaves(value, f"{name}.{key}" if name else str(key), (*above, id(tree)))


def _unique(name: str, taken: set[str]) -> str:
    if name not in taken:
        return name
    return next(new for i in range(2, len(taken) + 3) if (new := f"{name}#{i}") not in taken)


def _address(tensor: torch.Tensor) -> int:
    """Return where a host tensor's bytes are; 0 if it has none, as a fake one or a wrapper around others."""
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        return 0
    return tensor.data_ptr()


_kinds: dict[tuple[torch.dtype, torch.Size, torch.device], str] = {}


def tensor_kind(tensor: torch.Tensor) -> str:
    """Return dtype and shape, such as ``float32[64, 10]``, and the device if it is not the host."""
    key = (tensor.dtype, tensor.shape, tensor.device)
    kind = _kinds.get(key)
    if kind is None:
        device = "" if tensor.device.type == "cpu" else f"@{tensor.device.type}"
        dtype = str(tensor.dtype).removeprefix("torch.")
        kind = _kinds[key] = f"{dtype}{list(tensor.shape)}{device}"
    return kind


def plain_entry(value: Any) -> tuple[str, int, bytes]:
    """Return kind, digest and sketch of a plain value; the sketch is its text, if that fits."""
    text = repr(value)
    return "value", digest_text(text), text.encode().ljust(24, b"\0") if len(text) <= 24 and text.isascii() else b""
