"""Stable names for parameters and buffers, the same in every leg of a run.

Nothing here keeps a module or a tensor alive.
"""

import weakref
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import nn

_WRAPPERS = ("_orig_mod", "module")
_WRAPPER_CLASSES = ("OptimizedModule", "DistributedDataParallel", "DataParallel", "FullyShardedDataParallel")


class Named(NamedTuple):
    """A tensor of a model and its name."""

    name: str
    tensor: "weakref.ref[torch.Tensor]"


class Model:
    """An outermost module, and the names of what it holds.

    Args:
        module: the outermost module.
        owner: a name for it that is the same in every leg, such as ``Generator`` or ``Net#2``.
    """

    def __init__(self, module: nn.Module, owner: str) -> None:
        self.reference = weakref.ref(module)
        self.owner = owner
        self.parameters: list[Named] = []
        self.buffers: list[Named] = []
        self.modules: list[tuple[str, weakref.ref[nn.Module]]] = []
        self.refresh()

    def refresh(self) -> None:
        """Read the names again, after something was registered."""
        module = self.reference()
        if module is None:
            return
        self.parameters = sorted(
            Named(f"{self.owner}/{strip_wrappers(name)}", weakref.ref(p)) for name, p in module.named_parameters()
        )
        self.buffers = sorted(
            Named(f"{self.owner}/{strip_wrappers(name)}", weakref.ref(b)) for name, b in module.named_buffers()
        )
        self.modules = [(f"{self.owner}/{strip_wrappers(name)}", weakref.ref(m)) for name, m in module.named_modules()]


class Registry:
    """Knows which module holds which, and names the outermost ones."""

    def __init__(self) -> None:
        self._parents: weakref.WeakKeyDictionary[nn.Module, weakref.ref[nn.Module]] = weakref.WeakKeyDictionary()
        self._models: weakref.WeakKeyDictionary[nn.Module, Model] = weakref.WeakKeyDictionary()
        self._owners: dict[str, weakref.ref[nn.Module]] = {}
        self._born: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary()
        """When each module was built: models of one class are told apart by it, whichever of them is called first."""
        self._count = 0
        self._owned: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()
        self._names: dict[int, Named] = {}
        self._homes: dict[int, tuple[weakref.ref[torch.Tensor], weakref.ref[nn.Module]]] = {}
        self._stale = False

    def registered(self, parent: nn.Module, child: nn.Module | None) -> None:
        """Note that ``parent`` now holds ``child``; the first holder counts."""
        if child is not None and child is not parent and not isinstance(child, torch.jit.ScriptModule):
            held = self._parents.get(child)
            if held is None or held() is None:
                self._parents[child] = weakref.ref(parent)
        self._note_birth(parent)
        self.changed()

    def parameter_registered(self, parent: nn.Module, parameter: torch.Tensor | None) -> None:
        """Note where a parameter lives, so that one of a model that is never called still has a name."""
        if parameter is not None:
            self._homes[id(parameter)] = (weakref.ref(parameter), weakref.ref(parent))
        self._note_birth(parent)
        self.changed()

    def _note_birth(self, module: nn.Module) -> None:
        if module not in self._born:
            self._count += 1
            self._born[module] = self._count

    def changed(self) -> None:
        """Note that a parameter, a buffer or a module was registered somewhere."""
        self._stale = True

    def model_of(self, module: nn.Module) -> Model:
        """Return the outermost module that holds ``module``, with its names."""
        top = self._top(module)
        model = self._models.get(top)
        if model is None:
            model = self._models[top] = Model(top, self._owner(top))
            self._index(model)
        if self._stale:
            self._stale = False
            self._names.clear()
            for known in list(self._models.values()):
                known.refresh()
                self._index(known)
        return model

    def modules(self) -> Iterator[tuple[str, nn.Module]]:
        """Yield the modules of the models that were called, with their names."""
        for model in list(self._models.values()):
            for name, reference in model.modules:
                module = reference()
                if module is not None:
                    yield name, module

    def refresh(self, model: Model) -> None:
        """Read a model's names again."""
        model.refresh()
        self._index(model)

    def name_of(self, tensor: torch.Tensor) -> str | None:
        """Return the name of a model's parameter, or None if no known module holds it."""
        named = self._names.get(id(tensor))
        if named is not None and named.tensor() is tensor:
            return named.name
        home = self._homes.get(id(tensor))
        if home is None or home[0]() is not tensor or (module := home[1]()) is None:
            return None
        self.model_of(module)
        named = self._names.get(id(tensor))
        return named.name if named is not None and named.tensor() is tensor else None

    def _index(self, model: Model) -> None:
        for named in model.parameters:
            tensor = named.tensor()
            if tensor is not None:
                known = self._names.get(id(tensor))
                if known is None or known.tensor() is not tensor:
                    self._names[id(tensor)] = named

    def _top(self, module: nn.Module) -> nn.Module:
        top, seen = self._original(module), {id(module)}
        while (
            (held := self._parents.get(top)) is not None and (parent := held()) is not None and id(parent) not in seen
        ):
            # A parent that let go of the child holds it no longer.
            if not any(child is top for child in parent._modules.values()):  # noqa: SLF001
                break
            seen.add(id(parent))
            top = parent
        return top

    def _original(self, module: nn.Module) -> nn.Module:
        """Return a part in place of a module that was put together from parts of another one, such as ``model[:3]``."""
        parts = list(module.children())
        holders = [held() if (held := self._parents.get(part)) is not None else None for part in parts]
        own = any(True for _ in module.parameters(recurse=False)) or any(True for _ in module.buffers(recurse=False))
        if not parts or own or module in self._parents or any(h is None or h is module for h in holders):
            return module
        return parts[0]

    def _owner(self, top: nn.Module) -> str:
        """Name an outermost module; one that is gone gives its name to the next, as a loss that is made at each step."""
        top = [top, *_unwrap(top)][-1]
        owner = self._owned.get(top)
        if owner is None:
            kind = type(top).__name__
            number = 1 + self._elders(top)
            while (held := self._owners.get(_numbered(kind, number))) is not None and held() is not None:
                number += 1
            owner = self._owned[top] = _numbered(kind, number)
            self._owners[owner] = weakref.ref(top)
        return owner

    def _elders(self, top: nn.Module) -> int:
        """Count the outermost modules of the same class that were built before and are still there."""
        born = self._born.get(top, self._count + 1)
        others = [m for m, when in self._born.items() if when < born and type(m) is type(top)]
        return sum(1 for other in others if self._is_outermost(other))

    def _is_outermost(self, module: nn.Module) -> bool:
        held = self._parents.get(module)
        parent = held() if held is not None else None
        return parent is None or type(parent).__name__ in _WRAPPER_CLASSES


def _numbered(kind: str, number: int) -> str:
    return kind if number == 1 else f"{kind}#{number}"


def _unwrap(module: nn.Module) -> Iterator[nn.Module]:
    while type(module).__name__ in _WRAPPER_CLASSES:
        inner = next((getattr(module, name) for name in _WRAPPERS if hasattr(module, name)), None)
        if not isinstance(inner, nn.Module):
            return
        yield inner
        module = inner


def strip_wrappers(name: str) -> str:
    """Remove the prefixes that DDP, DataParallel and ``torch.compile`` put before names."""
    parts = name.split(".")
    while parts and parts[0] in _WRAPPERS:
        parts.pop(0)
    return ".".join(part for part in parts if part != "_orig_mod")
