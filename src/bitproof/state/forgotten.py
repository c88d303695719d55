"""Name what looks stateful, touches registered parts, and is not registered itself.

Live objects are found through the garbage collector's list. It knows what is alive, not what is still used, so
unreachable leftovers are collected before anything is named.
"""

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel

from bitproof.state import rng
from bitproof.state.generators import is_known
from bitproof.state.modules import named_parameters
from bitproof.state.optimizers import inner_optimizers
from bitproof.state.paths import type_name

Judge = Callable[[Any], Iterable["Forgotten"]]


class Forgotten(NamedTuple):
    """Something stateful that would not be saved."""

    what: str
    """The class."""
    why: str
    """How it touches what is registered."""
    remedy: str


def forgotten(components: Mapping[str, Any]) -> list[Forgotten]:
    """Name live stateful objects that a run's parts depend on and that are not among them.

    Looked for are schedulers of a registered optimizer; optimizers that wrap a registered one or update registered
    parameters; averages of a registered model; modules whose parameters a registered optimizer updates; and gradient
    scalers in use, if an optimizer is registered; and generators inside registered objects whose state cannot be
    taken. What a registered part carries (the inner schedulers of a
    ``SequentialLR``, the inner optimizer of a wrapping one, a submodule) counts as registered.

    Args:
        components: the registered parts by name.

    Returns:
        One finding an object, sorted; empty if nothing is missing. Takes a pass over all live objects (about 0.1 s),
        so it is meant to be called once, before the first save.

    Example:
        >>> optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
        >>> scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        >>> [finding.what for finding in forgotten({"optimizer": optimizer})]
        ['StepLR']
    """
    found = list(_unknown_generators(components))
    if _scan(components):
        gc.collect()  # an old scheduler and its optimizer often hold each other
        found += _scan(components)
    return sorted(set(found))


def _unknown_generators(components: Mapping[str, Any]) -> Iterator[Forgotten]:
    for path, generator in rng.find_generators(components).found:
        if not is_known(generator):
            why = f"draws at {path}, and the state of its class cannot be taken"
            yield Forgotten(type_name(generator), why, "use a generator of NumPy, random.Random or torch.Generator")


def _scan(components: Mapping[str, Any]) -> list[Forgotten]:
    parts = _Registered(components)
    judges: dict[type, Judge | None] = {}
    found: list[Forgotten] = []
    for candidate in gc.get_objects():
        kind = type(candidate)  # not isinstance(): a proxy would answer with code of its own
        if kind in judges:
            judge = judges[kind]
        else:
            judge = judges[kind] = parts.judge_of(kind)
        if judge is not None and id(candidate) not in parts.carried:
            found += judge(candidate)
    return found


class _Registered:
    """What is registered, and what that carries."""

    def __init__(self, components: Mapping[str, Any]) -> None:
        self.carried = {id(component) for component in components.values()}
        self._optimizers: dict[int, str] = {}
        self._states: set[int] = set()
        self._parameters: dict[int, str] = {}
        self._models: dict[frozenset[tuple[str, torch.Size]], str] = {}
        self._updated: dict[int, str] = {}
        for name, component in components.items():
            self._add(name, component)
        self.carried |= self._optimizers.keys()

    def _add(self, name: str, component: Any) -> None:
        if isinstance(component, nn.Module):
            self.carried |= {id(module) for module in component.modules()}
            parameters = named_parameters(component)
            self._parameters |= {id(parameter): name for parameter in parameters.values()}
            self._models.setdefault(_signature(component), name)
        elif isinstance(component, Optimizer):
            for one in (component, *(inner.optimizer for inner in inner_optimizers(component))):
                self._optimizers[id(one)] = name
                self._states.add(id(one.state))
                self._updated |= {id(p): name for group in one.param_groups for p in group["params"]}
        elif isinstance(component, LRScheduler):
            waiting = [component]
            while waiting:
                scheduler = waiting.pop()
                self.carried.add(id(scheduler))
                waiting += getattr(scheduler, "_schedulers", [])
        elif callable(getattr(component, "state_dict", None)) or hasattr(component, "__dict__"):
            # It says itself what it carries: trust it with all that it holds.
            self.carried |= rng.reachable({name: component})

    def judge_of(self, kind: type) -> "Judge | None":
        """Return what judges objects of a class; None for almost all classes."""
        for base, judge in (
            (Optimizer, self.judge_optimizer),
            (AveragedModel, self.judge_average),
            (nn.Module, self.judge_module),
            (torch.amp.GradScaler, self.judge_scaler),
            (LRScheduler, self.judge_scheduler),
        ):
            if base in kind.__mro__:
                return judge
        defined = {name for base in kind.__mro__ for name in base.__dict__}
        return self.judge_scheduler if defined >= {"step", "state_dict", "load_state_dict"} else None

    def judge_optimizer(self, optimizer: Any) -> Iterator[Forgotten]:
        if not isinstance(getattr(optimizer, "param_groups", None), list) or id(optimizer.state) in self._states:
            return  # half made, or a window on a registered one
        what = type(optimizer).__name__
        for inner in inner_optimizers(optimizer):
            if id(inner.optimizer) in self._optimizers:
                name = self._optimizers[id(inner.optimizer)]
                remedy = f"register the {what} in the place of {name!r}: it carries its inner optimizer too"
                yield Forgotten(what, f"wraps the registered optimizer {name!r}", remedy)
                return
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                owner = self._parameters.get(id(parameter))
                if owner is not None:
                    remedy = f"register the {what}, or delete it if it is not used any more"
                    yield Forgotten(what, f"updates parameters of the registered {owner!r}", remedy)
                    return

    def judge_scheduler(self, scheduler: Any) -> Iterator[Forgotten]:
        optimizer = getattr(scheduler, "__dict__", {}).get("optimizer")
        name = self._optimizers.get(id(optimizer)) if optimizer is not None else None
        if name is not None:
            what = type(scheduler).__name__
            why = f"sets the rates of the registered optimizer {name!r}"
            yield Forgotten(what, why, f"register the {what}, or delete it if it is not used any more")

    def judge_average(self, average: Any) -> Iterator[Forgotten]:
        name = self._models.get(_signature(average.module))
        if name is not None:
            why = f"has the same parameters as the registered {name!r}, and a count of updates"
            yield Forgotten("AveragedModel", why, "register the AveragedModel, or delete it if it is not used any more")

    def judge_module(self, module: Any) -> Iterator[Forgotten]:
        for parameter in module.__dict__.get("_parameters", {}).values():
            name = self._updated.get(id(parameter)) if parameter is not None else None
            if name is not None and id(parameter) not in self._parameters:
                what = type(module).__name__
                why = f"has parameters that the registered optimizer {name!r} updates"
                yield Forgotten(what, why, f"register the {what}, or the module that holds it")
                return

    def judge_scaler(self, scaler: Any) -> Iterator[Forgotten]:
        # A scaler keeps no reference to an optimizer; one that has scaled a loss is in use.
        if self._optimizers and scaler.is_enabled() and scaler._scale is not None:  # noqa: SLF001
            why = "has scaled a loss in this process; its scale and growth counter decide which steps are skipped"
            yield Forgotten("GradScaler", why, "register the GradScaler")


def _signature(module: nn.Module) -> frozenset[tuple[str, torch.Size]]:
    return frozenset((name, parameter.shape) for name, parameter in named_parameters(module).items())
