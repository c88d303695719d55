"""What a run must carry: its registered parts and its generators, as one tree, and back.

Parts are modules, optimizers, schedulers, scalers, anything with ``state_dict`` and ``load_state_dict``, generators,
plain data, and objects whose attributes are plain data. Every saved part is reported as restored, absent or refused.
"""

import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from bitproof.state import rng
from bitproof.state.errors import StateMismatchError, StateVersionError, UnsupportedStateError
from bitproof.state.generators import GENERATORS, restore_generator
from bitproof.state.modules import capture_module, named_parameters, restore_module
from bitproof.state.optimizers import capture_optimizer, restore_optimizer
from bitproof.state.restore import differences, restore_into
from bitproof.state.tree import snapshot

LAYOUT = 1
"""Version of the tree that :func:`capture` gives."""

Kind = Literal["module", "optimizer", "scaler", "scheduler", "stateful", "generator", "value", "object"]
Status = Literal["restored", "absent", "refused"]

# Optimizers need the modules' names; what is left may draw while it loads, so generators come last of all.
_ORDER: tuple[Kind, ...] = ("module", "optimizer", "scaler", "scheduler", "stateful", "value", "object", "generator")
_VALUES = (
    *(dict, list, tuple, set, frozenset, bool, int, float, complex, str, bytes, type(None)),
    *(torch.Tensor, np.ndarray, np.generic),
)
_STATELESS = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType)


class Part(NamedTuple):
    """What became of one part of a saved state."""

    name: str
    status: Status
    """``absent``: saved but not here, or here but not saved. ``refused``: it does not fit."""
    detail: str = ""


@dataclass(frozen=True)
class Report:
    """What became of every part."""

    parts: tuple[Part, ...]
    notes: tuple[str, ...] = ()
    """What a person should know though nothing was refused."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Restored parts that cannot be changed in place (a number, a text), by name; their owner must take them."""

    @property
    def complete(self) -> bool:
        """Whether every part was restored."""
        return all(part.status == "restored" for part in self.parts)

    def of(self, status: Status) -> tuple[Part, ...]:
        """Return the parts with this status."""
        return tuple(part for part in self.parts if part.status == status)


def capture(components: Mapping[str, Any], *, gradients: bool = True) -> dict[str, Any]:
    """Collect the state of parts and of every generator as a tree for :func:`bitproof.state.tree.encode`.

    Nothing is changed or drawn. The tree holds the live tensors: encode and copy it before training goes on.

    Args:
        components: the parts by name.
        gradients: also take each parameter's ``.grad``, which an open accumulation window needs.

    Raises:
        UnsupportedStateError: a part is of a kind that has no state to take; says what to do.
    """
    names = _parameter_names(components)
    own = {id(component) for component in components.values()}
    parts = {name: _capture_part(name, part, names, own, gradients) for name, part in components.items()}
    search = rng.find_generators(components)
    generators = {"global": rng.capture_global(), "found": rng.capture_found(search.found), "complete": search.complete}
    return {"layout": LAYOUT, "parts": parts, "generators": generators}


def restore(components: Mapping[str, Any], tree: Mapping[str, Any]) -> Report:
    """Put a captured state back into the live parts and generators, in place.

    Each part stands for itself: one that is refused does not keep the others from being restored.

    Args:
        components: the live parts by name, as they were registered when the state was saved.
        tree: what :func:`capture` gave, once through the codec.

    Raises:
        StateVersionError: the tree was made by another version.

    Example:
        >>> from bitproof.state import decode, encode
        >>> model = nn.Linear(1, 1)
        >>> document, tensors = encode(capture({"model": model}))
        >>> restore({"model": model}, decode(document, tensors)).complete
        True
    """
    _check_layout(tree)
    restorer = _Restorer(components)
    saved = tree["parts"]
    for kind in _ORDER:
        for name, part in saved.items():
            if part["kind"] == kind:
                restorer.restore(name, part)
    for name in components:
        if name not in saved:
            restorer.parts.append(Part(name, "absent", "registered here, but not in the saved state; it starts fresh"))
    restorer.restore_generators(tree["generators"])
    return Report(tuple(restorer.parts), tuple(restorer.notes), restorer.values)


def restore_part(name: str, components: Mapping[str, Any], tree: Mapping[str, Any]) -> Report:
    """Restore one part that was made after :func:`restore`, such as a scaler made at its first use.

    Args:
        name: the part's name.
        components: the live parts, with the new one among them.
        tree: the tree that the others were restored from. Generators are left alone.
    """
    _check_layout(tree)
    restorer = _Restorer(components)
    if name in tree["parts"]:
        restorer.restore(name, tree["parts"][name])
    else:
        restorer.parts.append(Part(name, "absent", "registered here, but not in the saved state; it starts fresh"))
    return Report(tuple(restorer.parts), tuple(restorer.notes), restorer.values)


def kind_of(component: Any) -> Kind:
    """Tell how a part's state is taken.

    Raises:
        UnsupportedStateError: it has neither a state dict, nor a form in a tree, nor attributes.
    """
    if isinstance(component, nn.Module):
        return "module"
    if isinstance(component, torch.amp.GradScaler):
        return "scaler"
    if isinstance(component, LRScheduler):
        return "scheduler"
    if isinstance(component, GENERATORS):
        return "generator"
    if callable(getattr(component, "state_dict", None)) and callable(getattr(component, "load_state_dict", None)):
        return "optimizer" if isinstance(getattr(component, "param_groups", None), list) else "stateful"
    if isinstance(component, _VALUES) or type(component).__module__ == "collections":
        return "value"
    if hasattr(component, "__dict__") and not isinstance(component, _STATELESS):
        return "object"
    msg = f"a {type(component).__name__} has no state that can be taken; give it state_dict() and load_state_dict()"
    raise UnsupportedStateError(msg)


def _parameter_names(components: Mapping[str, Any]) -> dict[int, str]:
    names: dict[int, str] = {}
    for part, component in components.items():
        if isinstance(component, nn.Module):
            for name, parameter in sorted(named_parameters(component).items()):
                names.setdefault(id(parameter), f"{part}.{name}")
    return names


def _capture_part(name: str, part: Any, names: Mapping[int, str], own: set[int], gradients: bool) -> dict[str, Any]:
    try:
        kind = kind_of(part)
    except UnsupportedStateError as error:
        msg = f"{name}: {error}"
        raise UnsupportedStateError(msg) from None
    state: Any = part
    if kind == "module":
        state = capture_module(part, gradients=gradients)
    elif kind == "optimizer":
        state = capture_optimizer(part, names, gradients=gradients)
    elif kind in {"scaler", "scheduler", "stateful"}:
        state = part.state_dict()
    elif kind == "object":
        state = _attributes(part, own)
    return {"kind": kind, "class": type(part).__name__, "state": state}


def _attributes(part: Any, own: set[int]) -> dict[str, Any]:
    """Return an object's attributes, without parts that are registered themselves and things that hold no state."""
    return {
        name: value for name, value in vars(part).items() if id(value) not in own and not isinstance(value, _STATELESS)
    }


def _check_layout(tree: Mapping[str, Any]) -> None:
    if tree.get("layout") != LAYOUT:
        msg = f"the saved state has layout {tree.get('layout')!r}; this bitproof reads layout {LAYOUT}. Install the bitproof that wrote it."
        raise StateVersionError(msg)


class _Restorer:
    """Restores parts one by one and keeps what became of each."""

    def __init__(self, components: Mapping[str, Any]) -> None:
        self.parts: list[Part] = []
        self.notes: list[str] = []
        self.values: dict[str, Any] = {}
        self._components = components
        self._names = _parameter_names(components)
        self._own = {id(component) for component in components.values()}
        self._reordered: set[int] = set()

    def restore(self, name: str, saved: Mapping[str, Any]) -> None:
        if name not in self._components:
            detail = f"a {saved['class']} was saved, nothing of this name is registered here"
            self.parts.append(Part(name, "absent", detail))
            return
        self._attempt(name, lambda: self._restore(name, self._components[name], saved))

    def restore_generators(self, saved: Mapping[str, Any]) -> None:
        search = rng.find_generators(self._components)
        if not (saved["complete"] and search.complete):
            self.notes.append(f"the search for generators stopped at {rng.LIMIT} objects; register others by name")
        for path, problem in rng.restore_found(search.found, saved["found"]):
            self.parts.append(Part(f"generator {path}", "refused" if problem else "restored", problem or ""))
        for path in rng.capture_found(search.found):
            if path not in saved["found"]:
                detail = "found here, but not in the saved state; it goes on as it is"
                self.parts.append(Part(f"generator {path}", "absent", detail))
        for name, state in saved["global"].items():
            self._attempt(f"generator {name}", lambda name=name, state=state: rng.restore_global(name, state))  # type: ignore[misc]

    def _attempt(self, name: str, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001  # whatever a part's own code raises is its outcome, and is reported
            kind = "" if isinstance(error, (StateMismatchError, UnsupportedStateError)) else f"{type(error).__name__}: "
            self.parts.append(Part(name, "refused", f"{kind}{error}"))
        else:
            self.parts.append(Part(name, "restored"))

    def _restore(self, name: str, live: Any, saved: Mapping[str, Any]) -> None:
        kind, state = kind_of(live), saved["state"]
        if kind != saved["kind"]:
            msg = f"it was saved as a {saved['class']} ({saved['kind']}) and is a {type(live).__name__} ({kind}) now"
            raise StateMismatchError(msg)
        if kind == "module":
            self._note(name, restore_module(live, state))
        elif kind == "optimizer":
            notes = restore_optimizer(live, state, self._names)
            if notes:
                self._reordered.add(id(live))
            self._note(name, notes)
        elif kind == "scaler":
            _restore_scaler(live, state)
        elif kind == "scheduler":
            self._restore_scheduler(live, state)
        elif kind == "stateful":
            live.load_state_dict(snapshot(state))
            # A loader's state_dict() may start its workers, so only others are asked.
            if not hasattr(type(live), "__iter__"):
                self._note(
                    name, [f"gives another state than it was given: {d}" for d in differences(state, live.state_dict())]
                )
        elif kind == "generator":
            restore_generator(live, state, (name,))
        elif kind == "object":
            _restore_object(live, state, self._own)
        else:
            result = restore_into(live, state)
            if result is not live:
                self.values[name] = result

    def _restore_scheduler(self, live: Any, state: Any) -> None:
        if id(live.optimizer) in self._reordered:
            msg = "its rates are kept by position, and its optimizer's groups were declared in another order; declare them as they were"
            raise StateMismatchError(msg)
        live.load_state_dict(snapshot(state))
        _check_state("its load_state_dict", state, live.state_dict())

    def _note(self, name: str, notes: list[str]) -> None:
        self.notes += [f"{name}: {note}" for note in notes]


def _restore_scaler(scaler: torch.amp.GradScaler, state: Mapping[str, Any]) -> None:
    if bool(state) != scaler.is_enabled():
        was, now = ("enabled" if on else "disabled" for on in (bool(state), scaler.is_enabled()))
        msg = f"it was {was} when it was saved and is {now} now; make it as it was"
        raise StateMismatchError(msg)
    if not state:
        return
    scaler.load_state_dict(dict(state))
    if scaler._scale is None:  # noqa: SLF001
        # Its tensors are made at the first scale(); unscale_() before that would fail.
        scaler.scale(torch.ones((), device=scaler._device))  # noqa: SLF001
    _check_state("its load_state_dict", state, scaler.state_dict())


def _restore_object(live: Any, state: Mapping[str, Any], own: set[int]) -> None:
    now = _attributes(live, own)
    for attribute, value in state.items():
        setattr(live, attribute, restore_into(now.get(attribute), value))
    for attribute in now.keys() - state.keys():
        delattr(live, attribute)


def _check_state(what: str, saved: Any, live: Any) -> None:
    wrong = list(differences(saved, live))
    if wrong:
        shown = "\n  ".join(wrong[:5])
        msg = f"{what} gave another state than the saved one:\n  {shown}"
        raise StateMismatchError(msg)
