"""The recorder: what probes see, put together into steps.

A step is the work (one or more backward passes) and the update (one or more optimizer calls with no backward pass
between them). The next backward pass starts the next step; what is seen before it already belongs to that next step.
A step is written as soon as an update has ended, and written again if a further update joins it.
"""

import math
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from bitproof.fingerprint import (
    ABSENT,
    combine,
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

KEEP_LATEST = 1_000
"""Steps whose details are always kept."""
_FORGET_EVERY = 256
_EARLY_EVENTS = 10_000
_MOST_ROWS = 4_096
_NO_SKETCH = bytes(24)
_SKETCHED = frozenset({"weights", "gradients", "optimizer", "buffers", "hyperparameters", "scaler", "saved"})

Entries = dict[str, tuple[str, int, bytes]]
"""Name → kind, digest, sketch."""


@dataclass(slots=True)
class Seen:
    """One tensor or value that entered a module from outside."""

    name: str
    kind: str
    digest: int
    samples: list[int]


@dataclass(slots=True)
class Yielded:
    """One batch that a data loader handed out."""

    leaves: list[Seen]
    addresses: frozenset[int]
    indices: list[int] | None
    keep: list["weakref.ref[torch.Tensor]"]


@dataclass(slots=True)
class Micro:
    """One backward pass, as it is put together."""

    inputs: list[Seen] = field(default_factory=list)
    from_eval: bool = False
    used: list[Yielded] = field(default_factory=list)
    losses: list[Seen] = field(default_factory=list)
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
    yielded: list[Yielded] = field(default_factory=list)
    produced: list[Any] = field(default_factory=list)
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
        leaves = list(_tensor_leaves(batch))
        # Where a module shows the batch, its first input is told apart by sample, and this one need not be.
        by_sample = self._latest is None or not any(micro.inputs for micro in self._latest.micros)
        seen = [self._see(name, t, by_sample=by_sample and i == 0) for i, (name, t) in enumerate(leaves)]
        self._window.yielded.append(
            Yielded(
                leaves=seen,
                addresses=frozenset(t.data_ptr() for _, t in leaves if t.device.type == "cpu" and t.numel()),
                indices=indices,
                keep=[weakref.ref(t) for _, t in leaves],
            )
        )

    def module_called(self, module: nn.Module, names: list[str], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note a module that is called, not from inside another one, with gradients enabled."""
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
        if module.training and micro.from_eval:
            # An evaluation that forgot no_grad came before: what it was given did not enter the step.
            micro.inputs, micro.used, micro.from_eval = [], [], False
        if not module.training and micro.inputs and not micro.from_eval:
            return
        micro.from_eval = not module.training
        named = [(names[i] if i < len(names) else f"arg{i}", value) for i, value in enumerate(args)]
        taken = {seen.name for seen in micro.inputs}
        for name, tensor in _tensor_leaves(dict([*named, *kwargs.items()])):
            if tensor.grad_fn is not None or self._was_produced(tensor):
                continue
            unique = _unique(name, taken)
            taken.add(unique)
            micro.inputs.append(self._see(unique, tensor, by_sample=not micro.inputs))
            self._match(micro, tensor)

    def module_returned(self, output: Any) -> None:
        """Note what an outermost module call returned."""
        for _, tensor in _tensor_leaves(output):
            self._window.produced.append(weakref.ref(tensor.untyped_storage()))

    def backward_begins(self, roots: Iterable[torch.Tensor]) -> None:
        """Note the start of a backward pass."""
        self._backward += 1
        if self._backward > 1:
            return
        window = self._window
        if not window.micros and self._depth == 0:
            self._work_begins()
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
        window.yielded = [y for y in pending if y not in micro.used][-4:] if micro.used else []
        window.micros.append(micro)
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
        self._depth += 1
        self._updates += 1
        if closure and self._depth == 1 and not self._window.micros:
            self._work_begins()
        window = self._joined() if self._depth == 1 else self._window
        self._capture_state(window, optimizer)
        if not closure:
            self._capture_gradients(window, optimizer)

    def closure_returned(self, optimizer: torch.optim.Optimizer) -> None:
        """Note that a closure has computed gradients; the first time counts."""
        if not self._window.facets.get("gradients"):
            self._capture_gradients(self._window, optimizer)

    def update_ends(self) -> None:
        """Note that an optimizer has changed weights."""
        self._depth -= 1
        if self._depth == 0:
            self._count_update(skipped=False)

    def update_abandoned(self) -> None:
        """Note that an optimizer raised instead of changing weights."""
        self._depth = max(0, self._depth - 1)

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
        alive = ((named.name, named.tensor()) for named in model.buffers)
        return {name: self._entry(tensor) for name, tensor in alive if tensor is not None}

    def _capture_state(self, window: Window, optimizer: torch.optim.Optimizer) -> None:
        name = self._optimizer_name(optimizer)
        weights, moments = window.facet("weights"), window.facet("optimizer")
        remembered = window.remembered
        for model in window.models.values():
            for named in model.parameters:
                tensor = named.tensor()
                if tensor is not None and named.name not in weights:
                    weights[named.name] = self._entry(tensor)
                    remembered.append(("weights", named.name, named.tensor))
        prefix = f"{name}/"
        for g, group in enumerate(optimizer.param_groups):
            for i, parameter in enumerate(group["params"]):
                known = self.registry.name_of(parameter)
                own = known or f"{name}/group{g}.{i}"
                if own not in weights:
                    weights[own] = self._entry(parameter)
                    remembered.append(("weights", own, weakref.ref(parameter)))
                state = optimizer.state.get(parameter)
                if state:
                    for key, value in state.items():
                        entry = f"{prefix}{own}.{key}"
                        moments[entry] = self._value(value)
                        if isinstance(value, torch.Tensor):
                            remembered.append(("optimizer", entry, weakref.ref(value)))
        self._capture_groups(window, name, optimizer)
        if self._scaler is not None and "scaler" not in window.facets:
            scaler = window.facet("scaler")
            scaler |= {key: plain_entry(value) for key, value in self._scaler.items()}
        if self.step == 0 and self.on_first_state is not None and window is self._window:
            self.on_first_state({facet: self._root(facet, entries) for facet, entries in window.facets.items()})
            self.on_first_state = None

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
            window.rate = float(groups[0]["lr"])

    def _capture_gradients(self, window: Window, optimizer: torch.optim.Optimizer) -> None:
        name = self._optimizer_name(optimizer)
        gradients = window.facet("gradients")
        for g, group in enumerate(optimizer.param_groups):
            for i, parameter in enumerate(group["params"]):
                own = self.registry.name_of(parameter) or f"{name}/group{g}.{i}"
                if own not in gradients:
                    gradients[own] = self._entry(parameter.grad)

    def _optimizer_name(self, optimizer: torch.optim.Optimizer) -> str:
        name = self._optimizers.get(optimizer)
        if name is None:
            kind = type(optimizer).__name__
            self._optimizer_names[kind] = count = self._optimizer_names.get(kind, 0) + 1
            name = self._optimizers[optimizer] = kind if count == 1 else f"{kind}#{count}"
            self._deaths.append(weakref.ref(optimizer, self._optimizer_died))
        return name

    def _see(self, name: str, tensor: torch.Tensor, *, by_sample: bool = False) -> Seen:
        kind, digest, _ = self._entry(tensor)
        samples: list[int] = []
        if by_sample and tensor.layout is torch.strided and tensor.dim() > 0 and 0 < tensor.shape[0] <= _MOST_ROWS:
            samples = digest_rows(tensor)
        return Seen(name, kind, digest, samples)

    def _match(self, micro: Micro, tensor: torch.Tensor) -> None:
        """Find the loader's batch that a module's input came from, and take its other tensors (labels) along."""
        address = tensor.data_ptr() if tensor.device.type == "cpu" and tensor.numel() else None
        for yielded in self._window.yielded:
            if address in yielded.addresses and yielded not in micro.used:
                micro.used.append(yielded)

    def _was_produced(self, tensor: torch.Tensor) -> bool:
        if not self._window.produced:
            return False
        storage = tensor.untyped_storage()
        return any(reference() is storage for reference in self._window.produced)

    def _value(self, value: Any) -> tuple[str, int, bytes]:
        if isinstance(value, torch.Tensor):
            return self._entry(value)
        if isinstance(value, (list, tuple)) and any(isinstance(v, torch.Tensor) for v in value):
            return "value", combine(self._value(v)[1] for v in value), b""
        if value is None or isinstance(value, (bool, int, float, complex, str, bytes, list, tuple)):
            return plain_entry(value)
        return "value", digest_text(type(value).__qualname__), b""

    def _entry(self, tensor: torch.Tensor | None) -> tuple[str, int, bytes]:
        if tensor is None:
            return "none", ABSENT, b""
        if tensor.layout is not torch.strided:
            return self._sparse_entry(tensor)
        return tensor_kind(tensor), *digest_and_sketch(tensor)

    def _sparse_entry(self, tensor: torch.Tensor) -> tuple[str, int, bytes]:
        if tensor.layout is torch.sparse_coo:
            whole = tensor.detach().coalesce()
            return tensor_kind(tensor), combine([digest_tensor(whole.indices()), digest_tensor(whole.values())]), b""
        self.note_unseen(f"a tensor of layout {tensor.layout}")
        return tensor_kind(tensor), ABSENT, b""

    def _keep_state(self, name: str, digest: int, state: bytes) -> None:
        self._states.append((name, digest, state))

    # --- writing ------------------------------------------------------------------------------------------------------

    def event(self, kind: EventKind, data: dict[str, Any], saved: TensorRow | None = None) -> Event:
        """Record that something happened, with the user's line."""
        event = Event(self.step, len(self._window.micros), kind, data, user_line(), saved)
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
            number = len(self._layouts) + 1
            known = self._layouts[layout] = (number, digest_text("\n".join((*layout.names, *layout.kinds))))
            if self._writer is not None:
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
            writer.forget_details(last - _FORGET_EVERY, last, self.settings.every)

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
        return head, StepDetail(rows, batches, losses, buffers, self._taken_states())

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
            self._writer = LegWriter(self.settings.trail, self.settings.leg, rank, facts)
            self._writer.begin()
            for layout, (number, _) in self._layouts.items():
                self._writer.layout(number, layout)
            self._writer.events(list(self._early))
            self._writer.commit()
            self._early.clear()
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
                window.facet(facet)[name] = self._entry(tensor)
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
            self._writer.close()
            self._writer = None

    @property
    def early_events(self) -> list[Event]:
        """Events seen so far by a process that has taken no step."""
        return list(self._early)

    def after_fork(self) -> None:
        """Start anew in a forked child, leaving the parent's file alone."""
        if self._writer is not None:
            self._writer.abandon()
        self._writer = None
        self._window, self._last, self._latest, self.step = Window(), None, None, 0
        self._layouts.clear()
        self._early.clear()
        self._depth = self._backward = 0
        self._started = time.monotonic()


def _tensor_leaves(tree: Any, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors in nested mappings, sequences and data classes, with dotted names."""
    if isinstance(tree, torch.Tensor):
        yield name or "0", tree
    elif isinstance(tree, dict) or (hasattr(tree, "keys") and hasattr(tree, "__getitem__")):
        for key in tree.keys():  # noqa: SIM118  # BatchEncoding and others iterate over something else
            yield from _tensor_leaves(tree[key], f"{name}.{key}" if name else str(key))
    elif isinstance(tree, (list, tuple)):
        for i, value in enumerate(tree):
            yield from _tensor_leaves(value, f"{name}.{i}" if name else str(i))
    elif hasattr(tree, "__dataclass_fields__"):
        for key in tree.__dataclass_fields__:
            yield from _tensor_leaves(getattr(tree, key, None), f"{name}.{key}" if name else key)


def _unique(name: str, taken: set[str]) -> str:
    if name not in taken:
        return name
    return next(new for i in range(2, len(taken) + 3) if (new := f"{name}#{i}") not in taken)


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
