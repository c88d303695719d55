"""One step as it is put together: its backward passes, and what is known of its state."""

import weakref
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import torch

from bitproof.fingerprint import combine
from bitproof.trail.looking import Entries, Seen, address, tensor_leaves
from bitproof.trail.names import Model
from bitproof.trail.records import Sample

_MOST_BATCHES = 256
_MOST_INPUTS = 1_024
_MOST_MICROS = 4_096


@dataclass(slots=True, eq=False)
class Yielded:
    """One batch that a data loader handed out."""

    leaves: list[Seen]
    storages: dict[int, "weakref.ref[torch.UntypedStorage]"]
    """By address; one that has died gave its address away."""
    indices: list[Sample] | None


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
    indices: list[Sample] | None = None
    buffers: Entries = field(default_factory=dict)
    rng: dict[str, int] = field(default_factory=dict)

    def add_input(self, seen: Seen) -> bool:
        """Add a tensor that entered, under a name of its own; False if there are too many, and it is folded in."""
        if len(self.inputs) == _MOST_INPUTS:
            # A loop without steps goes on for ever: the rest is folded into one.
            last = self.inputs[-1]
            last.name, last.digest, last.samples = "further", combine([last.digest, seen.digest]), []
            return False
        seen.name = _unique(seen.name, self.taken)
        self.taken.add(seen.name)
        self.inputs.append(seen)
        return True

    def drop_inputs(self) -> None:
        """Forget what entered so far."""
        self.inputs, self.used, self.taken = [], [], set()

    def batch(self) -> list[Seen]:
        """Return the inputs, and what else the loader's batches that they came from hold, such as labels."""
        inputs = list(self.inputs)
        known = {seen.digest for seen in inputs}
        taken = {seen.name for seen in inputs}
        for used in self.used:
            for leaf in used.leaves:
                if leaf.digest not in known:
                    name = _unique(f"loader.{leaf.name}", taken)
                    taken.add(name)
                    inputs.append(Seen(name, leaf.kind, leaf.digest, leaf.samples))
        return inputs


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

    def note_produced(self, output: Any) -> None:
        """Remember what an outermost module returned, so that it is not taken for something from outside."""
        for _, tensor in tensor_leaves(output):
            if address(tensor):
                storage = tensor.untyped_storage()
                self.produced[id(storage)] = weakref.ref(storage)
        if len(self.produced) > self.most_produced:
            self.produced = {key: ref for key, ref in self.produced.items() if ref() is not None}
            self.most_produced = 2 * len(self.produced) + _MOST_BATCHES

    def was_produced(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor came out of a module, or was computed with gradients."""
        if tensor.grad_fn is not None:
            return True
        if not self.produced or not address(tensor):
            return False
        storage = tensor.untyped_storage()
        known = self.produced.get(id(storage))
        return known is not None and known() is storage

    def match(self, tensor: torch.Tensor) -> None:
        """Find the loader's batch that a module's input came from, and take its other tensors (labels) along."""
        where, micro = address(tensor), self.open_micro
        for yielded in self.yielded:
            storage = yielded.storages.get(where)
            if storage is not None and storage() is tensor.untyped_storage() and yielded not in micro.used:
                micro.used.append(yielded)

    def end_micro(self) -> None:
        """End the open backward pass: give it the batches that it used, and open the next one."""
        micro, pending = self.open_micro, self.yielded
        fresh = [y for y in pending if y not in micro.used]
        if not micro.used and not micro.inputs:
            micro.used = fresh
        elif not micro.used and len(fresh) == 1:
            # The model was given something made from it: where the samples come from is known all the same.
            micro.indices = fresh[0].indices
        if pending:
            micro.loader = combine(leaf.digest for y in (micro.used or pending) for leaf in y.leaves)
        left = [y for y in pending if y not in micro.used] if micro.used else []
        self.yielded = deque(left, _MOST_BATCHES)
        self.micros.append(micro)
        if len(self.micros) > _MOST_MICROS:
            del self.micros[0]  # a window of this length has updates that cannot be seen
        self.open_micro = Micro()


def _unique(name: str, taken: set[str]) -> str:
    if name not in taken:
        return name
    return next(new for i in range(2, len(taken) + 3) if (new := f"{name}#{i}") not in taken)
