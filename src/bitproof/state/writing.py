"""Second pass over a state tree: write its nodes, and name its tensors."""

import collections
import random
import struct
from typing import Any

import numpy as np
import torch

from bitproof.state import dtypes, nodes
from bitproof.state.nodes import Node
from bitproof.state.paths import Path
from bitproof.state.survey import DICTS, IMMUTABLE, SEQUENCES, SETS, Block, Survey, is_lazy

_INT64 = range(-(1 << 63), 1 << 63)


class Writer:
    """Writes nodes, and collects the tensors that they name."""

    def __init__(self, survey: Survey) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self._survey = survey
        self._blocks = survey.blocks()
        self._names: dict[int, str] = {}
        self._ids: dict[int, int] = {}

    def node(self, value: Any, path: Path = ()) -> Node:
        """Write a value and all below it."""
        if id(value) not in self._survey.shared or type(value) in IMMUTABLE:
            return self._new(value, path)
        number = self._ids.get(id(value))
        if number is not None:
            return nodes.Again(number)
        number = self._ids[id(value)] = len(self._ids)
        return nodes.Shared(number, self._new(value, path))

    def _new(self, value: Any, path: Path) -> Node:
        kind = type(value)
        if kind in IMMUTABLE:
            return _scalar(value)
        if kind in DICTS or kind is collections.Counter:
            pairs = [(self.node(key, path), self.node(item, (*path, key))) for key, item in value.items()]
            return nodes.Counter(pairs) if kind is collections.Counter else nodes.Dict(pairs)
        if kind in SETS:
            members = sorted((self.node(item, path) for item in value), key=nodes.write_node)
            return nodes.Set(members) if kind is set else nodes.FrozenSet(members)
        if kind is torch.Size:
            return nodes.Size(list(value))
        if kind in SEQUENCES:
            items = [self.node(item, (*path, index)) for index, item in enumerate(value)]
            if kind is collections.deque:
                return nodes.Deque(items, value.maxlen)
            return nodes.List(items) if kind is list else nodes.Tuple(items)
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if kind is np.ndarray:
            return self._array(value)
        if isinstance(value, np.generic):
            return nodes.NumpyScalar(dtypes.describe_numpy(value.dtype), value.tobytes().hex())
        if kind is torch.dtype:
            return nodes.DType(dtypes.dtype_name(value))
        if kind is torch.device:
            return nodes.Device(str(value))
        if isinstance(value, np.dtype):
            return nodes.NumpyDType(dtypes.describe_numpy(value))
        return self._generator(value, path)

    def _tensor(self, tensor: torch.Tensor) -> Node:
        block = self._blocks[id(tensor)]
        name = self._store(block)
        view = self._survey.views[id(tensor)]
        lazy = is_lazy(tensor)
        strides = None
        if not tensor.is_contiguous() and tensor.nbytes and not lazy and (block.address is not None or view.dense):
            strides = list(tensor.stride())
        offset = view.start - block.address if block.address is not None and not lazy else None
        requires_grad = tensor.requires_grad if type(tensor) is torch.nn.Parameter else None
        return nodes.Tensor(name, dtypes.dtype_name(tensor.dtype), list(tensor.shape), strides, offset, requires_grad)

    def _array(self, array: "np.ndarray[tuple[int, ...], np.dtype[np.generic]]") -> Node:
        block = self._blocks[id(array)]
        name = self._store(block)
        view = self._survey.views[id(array)]
        strides = None
        if array.nbytes and not view.row_major and (block.address is not None or view.dense):
            strides = list(array.strides)
        # A mirrored array alone is stored in its own order, so its strides must be those of a copy.
        if block.address is None and strides is not None and min(strides) < 0:
            strides = None
        offset = view.start - block.address if block.address is not None and array.nbytes else None
        return nodes.Array(name, dtypes.describe_numpy(array.dtype), list(array.shape), strides, offset)

    def _store(self, block: Block) -> str:
        name = self._names.get(id(block))
        if name is None:
            name = wanted = block.name
            count = 1
            while name in self.tensors:  # the keys 0 and "0" of one dict
                count += 1
                name = f"{wanted}#{count}"
            self._names[id(block)] = name
            self.tensors[name] = block.carrier()
        return name

    def _generator(self, value: Any, path: Path) -> Node:
        state = self._survey.states[id(value)]
        if isinstance(value, random.Random):
            return nodes.PythonRandom(self.node(state, path))
        if isinstance(value, torch.Generator):
            return nodes.TorchGenerator(str(value.device), self.node(state, path))
        if isinstance(value, np.random.Generator):
            return nodes.NumpyGenerator(self.node(state, path))
        if isinstance(value, np.random.RandomState):
            return nodes.NumpyRandomState(self.node(state, path))
        return nodes.BitGenerator(type(value).__name__, self.node(state["state"], path), self.node(state["seed"], path))


def _scalar(value: Any) -> Node:
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return value if value in _INT64 else nodes.Int(hex(value))
    if isinstance(value, float):
        return value if value - value == 0 else nodes.Float(_bits(value))
    if isinstance(value, complex):
        return nodes.Complex(_bits(value.real), _bits(value.imag))
    if isinstance(value, bytes):
        return nodes.Bytes(value)
    text: str = value
    try:
        text.encode()
    except UnicodeEncodeError:
        return nodes.Text(text.encode("utf-8", "surrogatepass").hex())
    return text


def _bits(value: float) -> str:
    return struct.pack(">d", value).hex()
