"""Make plain data from the nodes of a document, whatever they say."""

import binascii
import collections
import random
import struct
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, TypeVar

import numpy as np
import torch

from bitproof.state import dtypes, memory, nodes
from bitproof.state.errors import StateCorruptError
from bitproof.state.generators import make_bit_generator, make_random_state
from bitproof.state.nodes import Node
from bitproof.state.paths import type_name

_KEYS = (bool, int, float, complex, str, bytes, type(None), tuple, frozenset)
_Made = TypeVar("_Made", dict[Any, Any], set[Any], frozenset[Any])


class Reader:
    """Makes plain data from nodes."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._stored = tensors
        self._tensors: dict[str, torch.Tensor] = {}
        self._flat: dict[str, torch.Tensor] = {}
        self._strided: dict[tuple[Any, ...], Any] = {}
        self._shared: dict[int, Any] = {}

    def value(self, node: Node) -> Any:
        """Make a node's value and all below it."""
        if node is None or isinstance(node, (bool, int, float, str)):
            return node
        made = _SCALARS.get(type(node))
        if made is not None:
            return made(node)
        if isinstance(node, nodes.Shared):
            if node.id in self._shared:
                raise StateCorruptError(f"the state document defines the shared object {node.id} twice")
            value = self._shared[node.id] = self.value(node.value)
            return value
        if isinstance(node, nodes.Again):
            if node.id not in self._shared:
                raise StateCorruptError(f"the state document uses the shared object {node.id} before it is there")
            return self._shared[node.id]
        return self._container(node)

    def _container(self, node: Any) -> Any:
        match node:
            case nodes.List():
                return [self.value(item) for item in node.items]
            case nodes.Tuple():
                return tuple(self.value(item) for item in node.items)
            case nodes.Deque():
                return collections.deque((self.value(item) for item in node.items), node.maxlen)
            case nodes.Dict():
                return self._dict(node.items)
            case nodes.Counter():
                return collections.Counter(self._dict(node.items))
            case nodes.Set():
                return _all_different(node.items, {self._key(item) for item in node.items})
            case nodes.FrozenSet():
                return _all_different(node.items, frozenset(self._key(item) for item in node.items))
            case nodes.Tensor():
                return self._tensor(node)
            case nodes.Array():
                return self._array(node)
            case nodes.BitGenerator():
                return make_bit_generator(node.name, self.value(node.state), self.value(node.seed))
            case nodes.NumpyGenerator():
                return np.random.Generator(self.value(node.bit_generator))
            case nodes.NumpyRandomState():
                return make_random_state(self.value(node.state))
            case nodes.PythonRandom():
                generator = random.Random()
                generator.setstate(self.value(node.state))
                return generator
            case nodes.TorchGenerator():
                device_generator = torch.Generator(device=node.device)
                device_generator.set_state(self.value(node.state).cpu().clone())
                return device_generator
            case _:
                raise StateCorruptError(f"the state document has an unexpected {type(node).__name__.lower()}")

    def _dict(self, items: Iterable[tuple[Node, Node]]) -> dict[Hashable, Any]:
        pairs = [(self._key(key), self.value(item)) for key, item in items]
        return _all_different(pairs, dict(pairs))

    def _key(self, node: Node) -> Hashable:
        value = self.value(node)
        if isinstance(value, _KEYS):
            return value
        raise StateCorruptError(f"the state document has a key of type {type_name(value)}")

    def _bytes_of(self, name: str) -> torch.Tensor:
        tensor = self._tensors.get(name)
        if tensor is None:
            try:
                tensor = self._stored[name].detach()
            except KeyError:
                msg = f"the state document needs the tensor {name!r}, which is not among those given"
                raise StateCorruptError(msg) from None
            self._tensors[name] = tensor
        return tensor

    def _flat_of(self, name: str) -> torch.Tensor:
        flat = self._flat.get(name)
        if flat is None:
            flat = self._bytes_of(name).reshape(-1).view(torch.uint8)
            if flat.storage_offset() % memory.ALIGNMENT:  # a slice of a file; views of wider elements need better
                flat = flat.clone()
            self._flat[name] = flat
        return flat

    def _seen_through(self, node: nodes.Tensor | nodes.Array, dtype: torch.dtype, shape: list[int]) -> torch.Tensor:
        """Return a stored tensor that stands alone, as row-major, checked against what the document says."""
        stored = self._bytes_of(node.name)
        if dtype in dtypes.AS_BYTES and stored.dtype is torch.uint8:
            stored = stored.reshape(-1).view(dtype).reshape(shape)
        if stored.dtype is not dtype or list(stored.shape) != shape:
            found = f"{dtypes.dtype_name(stored.dtype)} of shape {list(stored.shape)}"
            msg = f"the tensor {node.name!r} is {found}; the state document expects {dtypes.dtype_name(dtype)} of shape {shape}"
            raise StateCorruptError(msg)
        return stored

    def _tensor(self, node: nodes.Tensor) -> torch.Tensor:
        dtype = dtypes.tensor_dtype(node.dtype)
        if node.offset is not None:
            flat = self._flat_of(node.name)
            strides = node.strides or memory.row_major_strides(node.shape)
            span = sum((n - 1) * s for n, s in zip(node.shape, strides, strict=True)) + 1
            part = flat[node.offset : node.offset + span * dtype.itemsize]
            tensor = part.view(dtype).as_strided(node.shape, strides)
        elif node.strides is not None:
            key = (node.name, dtype, tuple(node.strides))
            if key not in self._strided:
                logical = self._seen_through(node, dtype, node.shape)
                if not memory.view("", 0, tuple(node.shape), tuple(node.strides), 1).dense:
                    raise StateCorruptError(
                        f"the tensor {node.name!r} has strides {node.strides} with gaps or overlaps"
                    )
                empty = torch.empty_strided(node.shape, node.strides, dtype=dtype, device=logical.device)
                self._strided[key] = empty.copy_(logical)
            tensor = self._strided[key].detach()
        else:
            tensor = self._seen_through(node, dtype, node.shape).detach()
        if node.requires_grad is not None:
            return torch.nn.Parameter(tensor, requires_grad=node.requires_grad)
        return tensor

    def _array(self, node: nodes.Array) -> Any:
        dtype = dtypes.numpy_dtype(node.dtype)
        shape = tuple(node.shape)
        if node.offset is not None:
            data = self._flat_of(node.name).numpy()
            return np.ndarray(shape, dtype, data.data, node.offset, tuple(node.strides) if node.strides else None)
        key = (node.name, str(dtype), tuple(node.strides or ()))
        if key in self._strided:
            return self._strided[key].view()
        twin = dtypes.torch_of_numpy(dtype)
        if twin is not None:
            array = self._seen_through(node, twin, node.shape).cpu().numpy()
        else:
            size = int(np.prod(shape, dtype=object)) * dtype.itemsize
            array = self._seen_through(node, torch.uint8, [size]).cpu().numpy()
            array = np.ndarray(shape, dtype, array.data if size else None)
        if node.strides is not None:
            axes = sorted(range(len(shape)), key=lambda axis: -node.strides[axis] if node.strides else 0)
            back = [axes.index(axis) for axis in range(len(shape))]
            array = np.ascontiguousarray(array.transpose(axes)).transpose(back)
        self._strided[key] = array
        return array


def _float(bits: str) -> float:
    value: float = struct.unpack(">d", bytes.fromhex(bits))[0]
    return value


def _numpy_scalar(node: nodes.NumpyScalar) -> Any:
    dtype = dtypes.numpy_dtype(node.dtype)
    data = bytes.fromhex(node.hex)
    if len(data) != dtype.itemsize:
        raise StateCorruptError(f"the state document has a {dtype} of {len(data)} bytes, expected {dtype.itemsize}")
    # [()] and not .item(): the scalar must stay a NumPy one.
    return np.ndarray((), dtype, data or None)[()]


_SCALARS: Mapping[type, Callable[[Any], Any]] = {
    nodes.Int: lambda node: int(node.hex, 16),
    nodes.Float: lambda node: _float(node.bits),
    nodes.Complex: lambda node: complex(_float(node.real), _float(node.imag)),
    nodes.Text: lambda node: binascii.unhexlify(node.hex).decode("utf-8", "surrogatepass"),
    nodes.Bytes: lambda node: node.data,
    nodes.NumpyScalar: _numpy_scalar,
    nodes.Size: lambda node: torch.Size(node.items),
    nodes.DType: lambda node: dtypes.any_dtype(node.name),
    nodes.Device: lambda node: torch.device(node.name),
    nodes.NumpyDType: lambda node: dtypes.numpy_dtype(node.dtype),
}


def _all_different(items: Any, made: _Made) -> _Made:
    if len(made) != len(items):
        raise StateCorruptError("the state document has two equal keys in one dict or set")
    return made
