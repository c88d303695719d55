"""The state before an update: weights, buffers, optimizers, hyperparameters, modes; and the gradients."""

import weakref
from collections.abc import Callable
from typing import Any

import torch

from bitproof.trail.looking import AWAITED, Entries, Look, Looker, plain_entry
from bitproof.trail.names import Model, Registry
from bitproof.trail.window import Window


class Capture:
    """Takes down the state, tensor by tensor, into a step's window.

    Args:
        registry: knows the names of parameters and buffers.
        looker: looks at them.
        optimizer_died: is called when an optimizer is no longer in use.
    """

    def __init__(self, registry: Registry, looker: Looker, optimizer_died: Callable[[Any], None]) -> None:
        self._registry = registry
        self._looker = looker
        self._optimizer_died = optimizer_died
        self._optimizers: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._optimizer_names: dict[str, int] = {}
        self._deaths: list[weakref.ref[Any]] = []
        self._rates: dict[str, tuple[str, Entries]] = {}

    def model(self, window: Window, model: Model, training: bool) -> None:
        """Take down a model's buffers and modes when it is first called, and again when first called to train."""
        key = id(model)
        if key in window.models and not (training and key in window.eval_models):
            return
        window.models[key] = model
        (window.eval_models.discard if training else window.eval_models.add)(key)
        window.facet("buffers").update(self.buffers_of(model))
        window.remembered += [("buffers", named.name, named.tensor) for named in model.buffers]
        mode = window.facet("mode")
        for name, reference in model.modules:
            module = reference()
            if module is not None:
                mode[name or type(module).__name__] = ("value", 2 if module.training else 1, b"")

    def buffers_of(self, model: Model) -> Entries:
        """Look at a model's buffers."""
        alive = [(named.name, named.tensor()) for named in model.buffers]
        if any(tensor is None for _, tensor in alive):
            # Module.to() and its like put other buffers in place, and no hook tells.
            self._registry.refresh(model)
            alive = [(named.name, named.tensor()) for named in model.buffers]
        return {name: self._looker.entry(tensor) for name, tensor in alive if tensor is not None}

    def state(self, window: Window, optimizer: torch.optim.Optimizer, scaler: dict[str, Any] | None) -> None:
        """Take down the weights, and the state of an optimizer and of the gradient scaler."""
        name = self._optimizer_name(optimizer)
        looks = self._weights_of_models(window)
        weights, moments = window.facet("weights"), window.facet("optimizer")
        remembered = window.remembered
        prefix = f"{name}/"
        for g, group in enumerate(optimizer.param_groups):
            for i, parameter in enumerate(group["params"]):
                known = self._registry.name_of(parameter)
                own = known or f"{name}/group{g}.{i}"
                if own not in weights:
                    weights[own] = AWAITED
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
                            moments[entry] = self._looker.value(value)
        state_of: dict[Any, Any] = optimizer.state
        for key, value in state_of.items():
            if not isinstance(key, torch.Tensor):
                moments[f"{prefix}{key}"] = self._looker.value(value)
        self._looker.look(looks)
        self._groups(window, name, optimizer)
        if scaler is not None and "scaler" not in window.facets:
            window.facet("scaler").update({key: plain_entry(value) for key, value in scaler.items()})

    def _weights_of_models(self, window: Window) -> list[Look]:
        looks: list[Look] = []
        weights = window.facet("weights")
        for model in window.models.values():
            for named in model.parameters:
                tensor = named.tensor()
                if tensor is not None and named.name not in weights:
                    weights[named.name] = AWAITED
                    looks.append((weights, named.name, tensor))
                    window.remembered.append(("weights", named.name, named.tensor))
        return looks

    def _groups(self, window: Window, name: str, optimizer: torch.optim.Optimizer) -> None:
        groups = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
        shown = repr(groups)
        known = self._rates.get(name)
        if known is None or known[0] != shown or "tensor" in shown:
            entries = {
                f"{name}/group{i}.{key}": self._looker.value(value)
                for i, group in enumerate(groups)
                for key, value in group.items()
            }
            known = self._rates[name] = (shown, entries)
        window.facet("hyperparameters").update(known[1])
        if window.rate is None and groups and "lr" in groups[0]:
            rate = groups[0]["lr"]  # None where the optimizer chooses its own
            window.rate = float(rate) if isinstance(rate, (int, float, torch.Tensor)) else None

    def gradients(self, window: Window, optimizer: torch.optim.Optimizer) -> None:
        """Take down the gradients that an optimizer is about to use."""
        name = self._optimizer_name(optimizer)
        gradients = window.facet("gradients")
        looks: list[Look] = []
        for g, group in enumerate(optimizer.param_groups):
            for i, parameter in enumerate(group["params"]):
                own = self._registry.name_of(parameter) or f"{name}/group{g}.{i}"
                if own not in gradients:
                    gradient = parameter.grad
                    gradients[own] = AWAITED if gradient is not None else self._looker.entry(None)
                    if gradient is not None:
                        looks.append((gradients, own, gradient))
        self._looker.look(looks)

    def drop_nameless(self, window: Window, optimizer: torch.optim.Optimizer) -> None:
        """Forget those parameters of an optimizer that no known model held."""
        nameless = f"{self._optimizer_name(optimizer)}/group"
        for facet in ("weights", "optimizer"):
            entries = window.facet(facet)
            for name in [name for name in entries if name.startswith(nameless) or f"/{nameless}" in name]:
                del entries[name]
        window.remembered = [known for known in window.remembered if nameless not in known[1]]

    def once_more(self, window: Window, number: int) -> Window:
        """Look at a step's state again, at the facets of which all tensors are still alive.

        Args:
            window: the step.
            number: of the window that is returned.
        """
        after, gone = Window(number=number), set()
        for facet, name, reference in window.remembered:
            tensor = reference()
            if tensor is None:
                gone.add(facet)
            elif facet not in gone:
                after.facet(facet)[name] = self._looker.entry(tensor)
        for facet in gone:
            after.facets.pop(facet, None)
        return after

    def _optimizer_name(self, optimizer: torch.optim.Optimizer) -> str:
        name = self._optimizers.get(optimizer)
        if name is None:
            kind = type(optimizer).__name__
            self._optimizer_names[kind] = count = self._optimizer_names.get(kind, 0) + 1
            name = self._optimizers[optimizer] = kind if count == 1 else f"{kind}#{count}"
            self._deaths.append(weakref.ref(optimizer, self._optimizer_died))
        return name
