"""First pass over a state tree: refuse what has no form, and find what occurs more than once."""

import collections
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from bitproof.state import dtypes, memory
from bitproof.state.errors import UnsupportedStateError
from bitproof.state.generators import GENERATORS, generator_state
from bitproof.state.paths import Path, say, tensor_name, type_name

MAX_DEPTH = 100
"""Containers in containers; more is refused."""

DICTS = (dict, collections.OrderedDict, collections.defaultdict)
SEQUENCES = (list, tuple, collections.deque)
SETS = (set, frozenset)
IMMUTABLE = (bool, int, float, complex, str, bytes, type(None))

_REMEDIES: tuple[tuple[type, str], ...] = (
    (torch.nn.Module, "register the module as a part of the run, or put its state_dict() here"),
    (torch.optim.Optimizer, "register the optimizer as a part of the run, or put its state_dict() here"),
    (dict, "make it a plain dict, with dict(value)"),
    (tuple, "make it a plain tuple, with tuple(value)"),
    (list, "make it a plain list, with list(value)"),
    (bytearray, "make it bytes, with bytes(value)"),
    (np.ndarray, "make it a plain array, with numpy.asarray(value)"),
    (torch.Tensor, "make it a plain strided tensor that holds data"),
    (int, "make it a plain int, with int(value) or value.value"),
    (str, "make it a plain str, with str(value) or value.value"),
)


class Block(NamedTuple):
    """What several tensors and arrays see, or one alone."""

    name: str
    carrier: Callable[[], torch.Tensor]
    address: int | None
    """Where its bytes start, if views into it are placed by offset."""


class _Leaf(NamedTuple):
    value: Any
    view: memory.View
    path: Path
    storage: torch.UntypedStorage | None


class Survey:
    """First pass: refuse what has no form, and find what occurs more than once."""

    def __init__(self) -> None:
        self.shared: set[int] = set()
        self.states: dict[int, Any] = {}
        """Plain data of each generator, read once."""
        self._seen: set[int] = set()
        self._open: set[int] = set()
        self.views: dict[int, memory.View] = {}
        """Where each tensor and array lies, by its identity."""
        self._leaves: list[_Leaf] = []

    def visit(self, value: Any, path: Path = (), depth: int = 0) -> None:
        """Look at a value and all below it."""
        kind = type(value)
        if kind in IMMUTABLE:
            return
        if depth > MAX_DEPTH:
            msg = f"{say(path[:3])}… is nested more than {MAX_DEPTH} deep; flatten it"
            raise UnsupportedStateError(msg)
        identity = id(value)
        if identity in self._open:
            msg = f"{say(path)} contains itself ({kind.__name__}); a state tree must end"
            raise UnsupportedStateError(msg)
        # The empty tuple is one object everywhere, and a tuple's identity is the interpreter's choice.
        if kind is not tuple and kind is not frozenset:
            if identity in self._seen:
                self.shared.add(identity)
                return
            self._seen.add(identity)
        self._open.add(identity)
        self._visit_new(value, path, depth + 1)
        self._open.discard(identity)

    def _visit_new(self, value: Any, path: Path, depth: int) -> None:
        kind = type(value)
        if kind in DICTS or kind is collections.Counter:
            for key, item in value.items():
                self._visit_key(key, path)
                self.visit(item, (*path, key), depth)
        elif kind in SETS:
            for item in value:
                self._visit_key(item, path)
        elif kind is not torch.Size and kind in SEQUENCES:
            for index, item in enumerate(value):
                self.visit(item, (*path, index), depth)
        elif isinstance(value, torch.Tensor):
            self._visit_tensor(value, path)
        elif kind is np.ndarray:
            self._describe(value.dtype, path)
            self._leaf(value, memory.view_of_array(value), path, None)
        elif isinstance(value, np.generic):
            self._describe(value.dtype, path)
        elif isinstance(value, GENERATORS):
            state = self.states[id(value)] = generator_state(value, path)
            self.visit(state, path, depth)
        elif kind not in {torch.Size, torch.dtype, torch.device} and not isinstance(value, np.dtype):
            raise _refusal(value, path)
        elif isinstance(value, np.dtype):
            self._describe(value, path)

    def _visit_key(self, key: Any, path: Path) -> None:
        if type(key) in IMMUTABLE:
            return
        if type(key) not in {tuple, frozenset}:
            msg = f"{say(path)} has the key or item {key!r} of type {type_name(key)}; keys and set items must be None, numbers, text, bytes, or tuples of them"
            raise UnsupportedStateError(msg)
        for item in key:
            self._visit_key(item, path)

    def _visit_tensor(self, tensor: torch.Tensor, path: Path) -> None:
        plain = type(tensor) in {torch.Tensor, torch.nn.Parameter}
        if not plain or tensor.layout is not torch.strided or tensor.device.type == "meta" or tensor.is_quantized:
            raise _refusal(tensor, path)
        if tensor.dtype not in dtypes.STORED and tensor.dtype not in dtypes.AS_BYTES:
            msg = f"{say(path)} is a tensor of dtype {tensor.dtype}, which has no stored form; view it as torch.uint8"
            raise UnsupportedStateError(msg)
        self._leaf(tensor, memory.view_of_tensor(tensor), path, tensor.untyped_storage())

    def _leaf(self, value: Any, view: memory.View, path: Path, storage: torch.UntypedStorage | None) -> None:
        self.views[id(value)] = view
        self._leaves.append(_Leaf(value, view, path, storage))

    def _describe(self, dtype: dtypes.NumpyDType, path: Path) -> None:
        try:
            dtypes.describe_numpy(dtype)
        except UnsupportedStateError as error:
            msg = f"{say(path)}: {error}"
            raise UnsupportedStateError(msg) from None

    def blocks(self) -> dict[int, Block]:
        """Decide what is stored, and which leaf sees which part of it, by the leaf's identity."""
        viewable = [leaf for leaf in self._leaves if leaf.value.nbytes and not is_lazy(leaf.value)]
        first: dict[memory.View, _Leaf] = {}
        for leaf in viewable:
            first.setdefault(leaf.view, leaf)
        grouped: dict[memory.View, Block] = {}
        for views in memory.sharing(first):
            block = _common_block([first[view] for view in views])
            grouped.update(dict.fromkeys(views, block))
        blocks = {id(leaf.value): Block(tensor_name(leaf.path), _carrier_of(leaf.value), None) for leaf in self._leaves}
        for leaf in viewable:
            blocks[id(leaf.value)] = grouped.get(leaf.view) or blocks[id(first[leaf.view].value)]
        return blocks


def _common_block(leaves: list[_Leaf]) -> Block:
    views = [leaf.view for leaf in leaves]
    start, end = min(view.first for view in views), max(view.end for view in views)
    for leaf in leaves:
        if leaf.view.first == start and leaf.view.end == end and leaf.view.row_major:
            return Block(tensor_name(leaf.path), _carrier_of(leaf.value), start)
    pointers = {leaf.storage.data_ptr() if leaf.storage is not None else None for leaf in leaves}
    storage = leaves[0].storage if len(pointers) == 1 else None
    if storage is None and views[0].space != "cpu":
        msg = f"{say(leaves[0].path)} and {say(leaves[1].path)} share memory on {views[0].space} but not a storage; clone one"
        raise UnsupportedStateError(msg)
    name = min(tensor_name(leaf.path) for leaf in leaves) + "#shared"
    return Block(name, lambda: memory.base_bytes(views, storage), memory.base_address(views, storage))


def is_lazy(value: Any) -> bool:
    """Whether reading a tensor computes its values (a conjugate or negative view), so that its bytes are not its own."""
    return isinstance(value, torch.Tensor) and (value.is_conj() or value.is_neg())


def _carrier_of(value: Any) -> Callable[[], torch.Tensor]:
    return lambda: _carry_tensor(value) if isinstance(value, torch.Tensor) else _carry_array(value)


def _carry_tensor(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
    if tensor.dtype in dtypes.AS_BYTES:
        return tensor.reshape(-1).view(torch.uint8)
    return tensor


def _carry_array(array: Any) -> torch.Tensor:
    if not array.flags.c_contiguous or not array.flags.writeable:
        array = np.array(array, order="C", copy=True)
    if dtypes.torch_of_numpy(array.dtype) is not None:
        return torch.from_numpy(array)
    if array.nbytes == 0:
        return torch.empty(0, dtype=torch.uint8)
    return torch.from_numpy(array.reshape(-1).view(np.uint8))


def _refusal(value: Any, path: Path) -> UnsupportedStateError:
    remedy = "give it state_dict() and load_state_dict(), or save plain data in its place"
    if isinstance(value, torch.Tensor) and value.layout is not torch.strided:
        remedy = "save its indices and values, or to_dense()"
    else:
        remedy = next((text for kind, text in _REMEDIES if isinstance(value, kind)), remedy)
    return UnsupportedStateError(f"{say(path)} is a {type_name(value)}, which has no form in a state tree; {remedy}")
