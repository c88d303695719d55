"""Every random number generator of a run: the global ones, and those found inside registered objects.

Reading never draws; restoring changes each generator in place.
"""

import collections
import functools
import random
import types
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from bitproof.state.errors import StateMismatchError, UnsupportedStateError
from bitproof.state.generators import GENERATORS, is_known, restore_generator

LIMIT = 200_000
"""Objects that a search looks at before it gives up, and says so."""

_LEAVES = frozenset({type(None), bool, int, float, complex, str, bytes, bytearray, range, slice})
_OPAQUE = (type, types.ModuleType, types.BuiltinFunctionType, torch.Tensor, np.generic, torch.dtype, torch.device)

_REGISTERED = frozenset({"_modules", "_parameters", "_buffers"})


class Found(NamedTuple):
    """A generator inside a registered object."""

    path: str
    """How it is reached, as Python: ``loader.dataset.transforms[0].rng``."""
    generator: Any


class _Place(NamedTuple):
    """Where an object was met; written out only for a generator."""

    holder: "_Place | None"
    step: str
    key: Any

    def __str__(self) -> str:
        where = "" if self.holder is None else str(self.holder)
        return f"{where}[{self.key!r}]" if self.step == "[" else f"{where}{self.step}{self.key}"


class Search(NamedTuple):
    """What a search found."""

    found: list[Found]
    complete: bool
    """False if it stopped at :data:`LIMIT` objects."""


def capture_global() -> dict[str, Any]:
    """Read the global generators: Python's, NumPy's legacy one, torch's, and each device's once it is initialised.

    Returns:
        A tree with ``python`` (what ``random.getstate`` gives), ``numpy`` (a dict), ``torch`` (uint8, shape
        ``(5056,)``) and ``cuda`` (a uint8 tensor a device; empty while CUDA is not initialised).
    """
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(legacy=False),  # noqa: NPY002  # the global one is what must come back
        "torch": torch.default_generator.get_state(),
        "cuda": list(cuda),
    }


def restore_global(name: str, state: Any) -> None:
    """Put one of the global generators back.

    Args:
        name: ``python``, ``numpy``, ``torch`` or ``cuda``.
        state: what :func:`capture_global` gave under that name.

    Raises:
        StateMismatchError: there are fewer devices than states, or NumPy's global one is of another kind.
    """
    if name == "python":
        random.setstate(state)
    elif name == "numpy":
        live: Any = np.random.get_state(legacy=False)  # noqa: NPY002
        if live["bit_generator"] != state["bit_generator"]:
            msg = f"NumPy's global generator was {state['bit_generator']} when it was saved and is {live['bit_generator']} now"
            raise StateMismatchError(msg)
        np.random.set_state(state)  # noqa: NPY002
    elif name == "torch":
        torch.default_generator.set_state(state.cpu().clone())
    else:
        devices = torch.cuda.device_count()
        if len(state) > devices:
            msg = f"the generators of {len(state)} CUDA devices were saved, and {devices} are here; resume with the same devices"
            raise StateMismatchError(msg)
        for index, one in enumerate(state):
            torch.cuda.set_rng_state(one.cpu().clone(), index)


def find_generators(parts: Mapping[str, Any]) -> Search:
    """Search objects for generators: through attributes, slots, dicts, lists, tuples, deques, partials and closures.

    The shortest way names a generator; one that is reached twice is named once. Global generators do not count.
    Properties are not called, sets are not searched (they have no order to name an item by).

    Args:
        parts: the objects by name.

    Example:
        >>> class Noise:
        ...     def __init__(self):
        ...         self.rng = np.random.default_rng(0)
        >>> find_generators({"noise": [Noise()]}).found[0].path
        'noise[0].rng'
    """
    return _search(parts)[0]


def reachable(parts: Mapping[str, Any]) -> set[int]:
    """Return the ids of all objects that such a search looks at."""
    return _search(parts)[1]


def _search(parts: Mapping[str, Any]) -> tuple[Search, set[int]]:
    globals_ = {id(torch.default_generator), id(getattr(random.random, "__self__")), id(np.random.mtrand._rand)}  # noqa: B009, SLF001
    waiting = collections.deque((_Place(None, "", name), part) for name, part in parts.items())
    seen = set(globals_)
    found: list[Found] = []
    kept: list[Any] = []  # an id is only good while its object lives
    while waiting:
        place, value = waiting.popleft()
        kind = type(value)  # not isinstance(): a proxy would answer with code of its own
        if kind in _LEAVES or id(value) in seen:
            continue
        if len(seen) >= LIMIT:
            return Search(found, complete=False), seen
        seen.add(id(value))
        kept.append(value)
        if issubclass(kind, GENERATORS):
            if not issubclass(kind, random.SystemRandom):
                found.append(Found(str(place), value))
            if issubclass(kind, np.random.Generator):
                seen.add(id(value.bit_generator))
        elif not issubclass(kind, _OPAQUE):
            waiting.extend(_children(place, value))
    return Search(found, complete=True), seen


def capture_found(found: list[Found]) -> dict[str, Any]:
    """Return the generators themselves by path, for the codec to read; those of an unknown class are left out."""
    return {path: generator for path, generator in found if is_known(generator)}


def restore_found(found: list[Found], saved: Mapping[str, Any]) -> Iterator[tuple[str, str | None]]:
    """Put generators back in place.

    Yields:
        Each saved path, with None if it was restored, or else why not.
    """
    live = dict(found)
    for path, generator in saved.items():
        if path not in live:
            yield path, "no generator is there any more; build the objects as they were when it was saved"
            continue
        try:
            restore_generator(live[path], generator, (path,))
        except (StateMismatchError, UnsupportedStateError) as error:
            yield path, str(error)
        else:
            yield path, None


def _children(place: _Place, value: Any) -> Iterator[tuple[_Place, Any]]:
    kind = type(value)
    if issubclass(kind, np.ndarray):
        if value.dtype.hasobject:
            yield from ((_Place(_Place(place, ".", "flat"), "[", i), item) for i, item in enumerate(value.flat))
        return
    if issubclass(kind, dict):
        for number, (key, item) in enumerate(list(value.items())):
            if type(item) not in _LEAVES:
                # Another key than a plain one has no stable text; its place in the dict has.
                yield (_Place(place, "[", key) if type(key) in _LEAVES else _Place(place, "#", number)), item
    elif issubclass(kind, (list, tuple, collections.deque)):
        for number, item in enumerate(list(value)):
            if type(item) not in _LEAVES:
                yield _Place(place, "[", number), item
    elif issubclass(kind, functools.partial):
        for name, item in (("func", value.func), ("args", value.args), ("keywords", value.keywords)):
            yield _Place(place, ".", name), item
    elif issubclass(kind, types.MethodType):
        yield _Place(place, ".", "__self__"), value.__self__
        return
    elif issubclass(kind, types.FunctionType):
        yield _Place(place, ".", "__defaults__"), value.__defaults__
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            try:
                yield _Place(place, ":", name), cell.cell_contents
            except ValueError:  # a variable that was never bound
                continue
        return
    yield from ((_Place(place, ".", name), item) for name, item in _attributes(value) if type(item) not in _LEAVES)


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    kind = type(value)
    if issubclass(kind, torch.nn.Module):
        yield from value._modules.items()  # noqa: SLF001
        yield from ((name, item) for name, item in vars(value).items() if name not in _REGISTERED)
        return
    try:
        attributes = object.__getattribute__(value, "__dict__")  # not the object's own code
    except AttributeError:
        attributes = None
    if isinstance(attributes, dict):
        yield from list(attributes.items())
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            member = base.__dict__.get(name)
            if isinstance(member, types.MemberDescriptorType):
                try:
                    yield name, member.__get__(value, kind)
                except AttributeError:  # a slot that was never set
                    continue
