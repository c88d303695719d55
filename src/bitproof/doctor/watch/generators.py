"""Generators of the user's own: where objects hold them, and what states they are seen in."""

import functools
import json
import random
import sys
from collections import deque
from collections.abc import Iterator
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader

from bitproof.fingerprint import digest_bytes, digest_tensor, digest_text
from bitproof.state.generators import GENERATORS
from bitproof.trail.site import is_users

Generator = random.Random | torch.Generator | np.random.Generator | np.random.RandomState | np.random.BitGenerator
_DEEPEST = 4
_MOST_OBJECTS = 2_000
_MOST_STATES = 256
_TELLING_BITS = 32
"""A shorter number, such as a position, is no sign of a state."""
_WHOLE = (torch.Tensor, np.ndarray, nn.Module, DataLoader, str, bytes, int, float, type(None), type)


class Tracked:
    """One generator, over the run.

    Args:
        name: where it is held, such as ``dataset.rng``.
        generator: it; held, since most generators cannot be referred to weakly.
    """

    def __init__(self, name: str, generator: Generator) -> None:
        self.name = name
        self.generator = generator
        self.keyed = False
        """It was seeded anew, or went back to an earlier state: its state follows from something else."""
        self.moved = False
        """It was drawn from between steps after the first."""
        self.unsaid: list[int] = []
        """Digests by which its states would be found in what is saved, and that were not noted yet."""
        self._seed = _seed(generator)
        self._looked = 0
        self._states: deque[int] = deque(maxlen=_MOST_STATES)

    def look(self, step: int) -> None:
        """Look at the state after ``step`` steps."""
        digest, before = state_digest(self.generator), self._looked
        self._looked = step
        if self._states and self._states[-1] == digest:
            return
        if _seed(self.generator) != self._seed or digest in self._states:
            self.keyed = True
        elif before >= 1 and not self.keyed:
            self.moved = True
        self._states.append(digest)
        self.unsaid = [*self.unsaid[-_MOST_STATES:], *shown_as(self.generator)]


def generators_of(holder: Any, name: str) -> Iterator[tuple[str, Generator]]:
    """Yield the generators that an object holds, in attributes and containers, with dotted names.

    The process's global ones are left out.
    """
    for path, value in held(holder, name, GENERATORS):
        if not is_global(value):
            yield path, value


def held(holder: Any, name: str, wanted: tuple[type, ...]) -> Iterator[tuple[str, Any]]:
    """Yield the objects of some classes that an object holds, in attributes, containers and closures, with dotted names.

    No code of the object's is run, and no more than some thousands of parts are looked at.
    """
    waiting: deque[tuple[str, Any, int]] = deque([(name, holder, 0)])
    seen: set[int] = set()
    while waiting and len(seen) < _MOST_OBJECTS:
        path, value, depth = waiting.popleft()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, wanted):
            yield path, value
        elif depth < _DEEPEST and len(waiting) < _MOST_OBJECTS:
            parts = ((key, part) for key, part in _parts(value) if not isinstance(part, _WHOLE))
            waiting.extend((f"{path}.{key}", part, depth + 1) for key, part in parts)


def generators_of_module(holder: Any) -> Iterator[tuple[str, Generator]]:
    """Yield the generators that stand in the user's module in which an object's class is defined."""
    module = sys.modules.get(type(holder).__module__)
    if module is not None and is_users(getattr(module, "__file__", None) or "<"):
        for key, value in list(vars(module).items()):
            if isinstance(value, GENERATORS) and not is_global(value):
                yield f"{module.__name__}.{key}", value


def state_digest(generator: Generator) -> int:
    """Return a digest of a generator's state."""
    if isinstance(generator, torch.Generator):
        return digest_tensor(generator.get_state().cpu())
    return digest_bytes(b"".join(_bytes_of(_state(generator))))


def shown_as(generator: Generator) -> list[int]:
    """Return the digests that the recorder gives to a generator's state where it is part of what is saved."""
    if isinstance(generator, torch.Generator):
        return [state_digest(generator)]
    state = _state(generator)
    if isinstance(generator, random.Random):
        return [digest_text(repr(form(state[1]))) for form in (tuple, list)]
    found = []
    for value in state["state"].values():
        if isinstance(value, np.ndarray):
            words = value.tolist()
            found += [digest_bytes(value.tobytes()), digest_text(repr(words)), digest_text(repr(tuple(words)))]
        elif int(value).bit_length() > _TELLING_BITS:
            found.append(digest_text(repr(value)))
    if isinstance(generator, np.random.Generator) and not isinstance(generator.bit_generator, np.random.MT19937):
        found.append(digest_text(repr(json.dumps(state))))
    return found


def _state(generator: Any) -> Any:
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    if isinstance(generator, np.random.RandomState):
        return generator.get_state(legacy=False)
    return generator.state


def _bytes_of(state: Any) -> Iterator[bytes]:
    """Yield the bytes of a state in a fixed order: not an array's ``repr``, which is cut as the user's settings say."""
    if isinstance(state, np.ndarray):
        yield state.tobytes()
    elif isinstance(state, dict):
        for value in state.values():
            yield from _bytes_of(value)
    else:
        yield f"{state!r};".encode()


def _seed(generator: Generator) -> int | None:
    return generator.initial_seed() if isinstance(generator, torch.Generator) else None


def of_process() -> dict[str, Generator]:
    """Return the generators of this process under the names that a trail gives them; a device's once it is in use."""
    devices = torch.cuda.default_generators if torch.cuda.is_initialized() else ()
    return {
        "torch": torch.default_generator,
        "python": getattr(random.random, "__self__"),  # noqa: B009  # random.random is a bound method of it
        "numpy": np.random.mtrand._rand,  # noqa: SLF001
        **{f"cuda:{index}": generator for index, generator in enumerate(devices)},
    }


def is_global(generator: Any) -> bool:
    """Tell whether a generator is one of the process's own."""
    return any(generator is one for one in of_process().values())


def attributes_of(value: Any) -> dict[str, Any]:
    """Return an object's attributes, without giving a ``__getattr__`` of its class anything to do."""
    return vars(value) if type(value).__dictoffset__ and not isinstance(value, type) else {}


def _parts(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [(str(key), part) for key, part in list(value.items())[:_MOST_OBJECTS]]
    if isinstance(value, (list, tuple)):
        return [(str(i), part) for i, part in enumerate(value[:_MOST_OBJECTS])]
    if isinstance(value, FunctionType):
        names, cells = value.__code__.co_freevars, value.__closure__ or ()
        return [(name, cell.cell_contents) for name, cell in zip(names, cells, strict=True) if _filled(cell)]
    if isinstance(value, MethodType):
        return [("self", value.__self__)]
    if isinstance(value, functools.partial):
        return [("function", value.func), ("arguments", value.args), ("keywords", value.keywords)]
    return list(attributes_of(value).items())


def _filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018  # an empty one raises
    except ValueError:
        return False
    return True
