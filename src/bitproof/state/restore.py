"""Put saved values into live objects, so that whoever holds those objects sees them."""

import collections
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from bitproof.state.dtypes import AS_BYTES
from bitproof.state.generators import GENERATORS, generator_state, restore_generator
from bitproof.state.paths import Path, say
from bitproof.state.tree import encode, snapshot

_DICTS = (dict, collections.OrderedDict, collections.defaultdict, collections.Counter)


def restore_into(live: Any, saved: Any, device: torch.device | None = None) -> Any:
    """Put a saved tree into a live one, in place wherever that is possible.

    A tensor or array is overwritten if shape, dtype and device are the same; a dict, list, set, deque or generator
    keeps its identity and gets the saved content; anything else is replaced. An object that the saved tree holds
    twice comes back as one object, and two saved objects never end in one live object.

    Args:
        live: the tree to change.
        saved: the tree that :func:`bitproof.state.tree.decode` gave; it is not kept, and shares nothing with the
            result.
        device: where tensors that cannot be overwritten in place are put; by default where the saved ones are.

    Returns:
        What belongs in ``live``'s place: ``live`` itself, or a new object if it cannot be changed in place.

    Raises:
        StateMismatchError: a generator is of another kind than the saved one.

    Example:
        >>> live = {"history": [1, 2], "best": 0.5}
        >>> restore_into(live, {"history": [1, 2, 3], "best": 0.25}) is live
        True
        >>> live
        {'history': [1, 2, 3], 'best': 0.25}
    """
    return _Restorer(device).put(live, saved, ())


class _Restorer:
    def __init__(self, device: torch.device | None) -> None:
        self._device = device
        self._done: dict[int, Any] = {}
        self._taken: set[int] = set()

    def put(self, live: Any, saved: Any, path: Path) -> Any:
        known = self._done.get(id(saved))
        if known is not None:
            return known
        if id(live) in self._taken:
            live = None
        result = self._put(live, saved, path)
        if not isinstance(saved, (bool, int, float, complex, str, bytes, tuple, frozenset, type(None))):
            self._done[id(saved)] = result
            self._taken.add(id(result))
        return result

    def _put(self, live: Any, saved: Any, path: Path) -> Any:
        if isinstance(saved, torch.Tensor):
            return self._tensor(live, saved)
        if isinstance(saved, dict):
            kept = live if type(live) in _DICTS else type(saved)()
            items = {key: self.put(kept.get(key), item, (*path, key)) for key, item in saved.items()}
            kept.clear()
            kept.update(items)
            return kept
        if isinstance(saved, (list, collections.deque)) or type(saved) is tuple:
            return self._sequence(live, saved, path)
        if type(saved) is set:
            kept_set = live if type(live) is set else set()
            items_now = set(saved)  # the saved one may be the live one
            kept_set.clear()
            kept_set.update(items_now)
            return kept_set
        if isinstance(saved, np.ndarray):
            if isinstance(live, np.ndarray) and _fits_array(live, saved):
                live[...] = saved
                return live
            return saved.copy(order="K")
        if isinstance(saved, GENERATORS):
            if isinstance(live, GENERATORS):
                restore_generator(live, saved, path)
                return live
            return snapshot(saved)
        return saved

    def _sequence(self, live: Any, saved: Any, path: Path) -> Any:
        old = list(live) if isinstance(live, (list, tuple, collections.deque)) else []
        old += [None] * (len(saved) - len(old))
        items = [self.put(old[index], item, (*path, index)) for index, item in enumerate(saved)]
        if isinstance(saved, tuple):
            return tuple(items)
        if type(live) is type(saved) and getattr(live, "maxlen", None) == getattr(saved, "maxlen", None):
            live.clear()
            live.extend(items)
            return live
        return items if isinstance(saved, list) else collections.deque(items, saved.maxlen)

    def _tensor(self, live: Any, saved: torch.Tensor) -> torch.Tensor:
        device = self._device or (live.device if isinstance(live, torch.Tensor) else saved.device)
        if isinstance(live, torch.Tensor) and _fits(live, saved) and live.device == device:
            overwrite(live, saved)
            return live
        fresh = saved.detach().to(device, copy=True)
        if isinstance(saved, torch.nn.Parameter):
            return torch.nn.Parameter(fresh, requires_grad=saved.requires_grad)
        return fresh


def overwrite(live: torch.Tensor, saved: torch.Tensor) -> None:
    """Copy every bit of a tensor of the same shape and dtype into another."""
    with torch.no_grad():
        live.detach().copy_(saved.detach())


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Tell whether two tensors have the same dtype, shape and bits (so −0.0 is not 0.0, and a NaN equals itself)."""
    if not _fits(a, b):
        return False
    return torch.equal(_as_bytes(a), _as_bytes(b))


def differences(saved: Any, live: Any, path: Path = ()) -> Iterator[str]:
    """Say where two trees differ in any bit, with both values, one line a place."""
    if isinstance(saved, torch.Tensor) and isinstance(live, torch.Tensor):
        if not same_bits(saved, live):
            yield f"{say(path)}: saved {describe(saved)}, live {describe(live)}"
    elif isinstance(saved, dict) and isinstance(live, dict):
        for key in saved.keys() | live.keys():
            if key not in live:
                yield f"{say(path)}: {key!r} is missing from the live one"
            elif key not in saved:
                yield f"{say(path)}: {key!r} is not in the saved one"
            else:
                yield from differences(saved[key], live[key], (*path, key))
    elif isinstance(saved, (list, tuple, collections.deque)) and type(saved) is type(live):
        if len(saved) != len(live):
            yield f"{say(path)}: saved {len(saved)} items, live {len(live)}"
        for index, (a, b) in enumerate(zip(saved, live, strict=False)):
            yield from differences(a, b, (*path, index))
    elif isinstance(saved, GENERATORS) and type(saved) is type(live):
        yield from differences(generator_state(saved), generator_state(live), path)
    elif not _same_plain(saved, live):
        yield f"{say(path)}: saved {describe(saved)}, live {describe(live)}"


def describe(value: Any) -> str:
    """Say a value in a few words, for a message."""
    if isinstance(value, torch.Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        if value.numel() == 1 and value.dtype not in AS_BYTES:
            return f"{dtype} of shape {list(value.shape)} with value {value.item()}"
        return f"{dtype} of shape {list(value.shape)}"
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "…"


def _fits(live: torch.Tensor, saved: torch.Tensor) -> bool:
    return live.dtype is saved.dtype and live.shape == saved.shape


def _fits_array(live: Any, saved: Any) -> Any:
    return live.dtype == saved.dtype and live.shape == saved.shape and live.flags.writeable


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1).view(torch.uint8)


def _same_plain(a: Any, b: Any) -> Any:
    """Compare anything else by its stored form; what has none is compared as it is."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b)
    if isinstance(a, (complex, set, frozenset)):
        return encode(a).document == encode(b).document  # −0.0 and NaN, which == would mistake
    if isinstance(a, (np.ndarray, np.generic)):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    return a == b
