"""State trees as a JSON document and named tensors, and back, without pickle.

A tree is made of dicts, lists, tuples, sets, deques, plain scalars, text, bytes, tensors, NumPy arrays and scalars,
generators, and torch's sizes, dtypes and devices. Its tensors go out under readable names, for safetensors; the rest
is a strict and versioned JSON document. Reading one makes plain data only, whatever the document says.

Three things survive that a copy usually loses: every bit (NaN payloads, −0.0, dtypes), objects that occur more than
once (tied weights, a shared list), and memory that several tensors see (views). Of a view alone, only its own
elements are stored.
"""

import binascii
import collections
import random
import struct
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

from bitproof.state import dtypes, memory, nodes
from bitproof.state.errors import StateCorruptError, StateError, UnsupportedStateError
from bitproof.state.nodes import Node

MAX_DEPTH = 100
"""Containers in containers; more is refused."""

BIT_GENERATORS: Mapping[str, type[np.random.BitGenerator]] = {
    name: getattr(np.random, name) for name in ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")
}

Path = tuple[Any, ...]
_Made = TypeVar("_Made", dict[Any, Any], set[Any], frozenset[Any])

_DICTS = (dict, collections.OrderedDict, collections.defaultdict)
_SEQUENCES = (list, tuple, collections.deque)
_SETS = (set, frozenset)
_IMMUTABLE = (bool, int, float, complex, str, bytes, type(None))
_GENERATORS = (random.Random, torch.Generator, np.random.Generator, np.random.RandomState)
_INT64 = range(-(1 << 63), 1 << 63)
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


class Encoded(NamedTuple):
    """A tree in its stored form."""

    document: bytes
    """Strict JSON."""
    tensors: dict[str, torch.Tensor]
    """Row-major tensors by name, of the dtypes that safetensors stores. They may share memory with the tree."""


def encode(tree: Any) -> Encoded:
    """Write a tree as a document and named tensors.

    ``OrderedDict`` and ``defaultdict`` come back as plain dicts. Equal trees give equal documents.

    Args:
        tree: plain data of any depth up to :data:`MAX_DEPTH`; tensors of any dtype and shape on any device.

    Returns:
        The document, and its tensors. A tensor that is row-major already is not copied: copy it before training goes
        on.

    Raises:
        UnsupportedStateError: something in the tree has no stored form; the message has its path and its type.

    Example:
        >>> document, tensors = encode({"model": {"weight": torch.ones(2)}, "step": 7})
        >>> list(tensors)
        ['model/weight']
        >>> decode(document, tensors)["step"]
        7
    """
    survey = _Survey()
    survey.visit(tree, (), 0)
    writer = _Writer(survey)
    return Encoded(nodes.write(writer.node(tree, ())), writer.tensors)


def decode(document: bytes, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Read what :func:`encode` wrote.

    Args:
        document: the JSON document.
        tensors: the named tensors; each is asked for when it is needed, so a lazy mapping will do.

    Returns:
        The tree. Its tensors share memory with ``tensors`` where the layout allows, and are on the same devices.

    Raises:
        StateVersionError: another version of the format wrote the document.
        StateCorruptError: the document is damaged, or does not fit the tensors.
    """
    reader = _Reader(tensors)
    try:
        return reader.value(nodes.read(document))
    except StateError:
        raise
    except (TypeError, ValueError, RuntimeError, OverflowError, KeyError, RecursionError) as error:
        # NumPy, torch and random check what they are given; what they refuse was not written by encode().
        msg = f"the state document cannot be read: {type(error).__name__}: {error}"
        raise StateCorruptError(msg) from error


def snapshot(tree: Any) -> Any:
    """Copy a tree such that nothing done to the original can change the copy; sharing inside it survives."""
    document, tensors = encode(tree)
    return decode(document, {name: tensor.clone() for name, tensor in tensors.items()})


def say(path: Path) -> str:
    """Write a path as Python would: ``state['model'][0]``."""
    return "state" + "".join(f"[{key!r}]" for key in path)


def tensor_name(path: Path) -> str:
    """Write a path as a tensor's name: ``model/0``. Characters that separate or cannot be printed are escaped."""
    name = "/".join(_escape(key if isinstance(key, str) else repr(key)) for key in path) or "."
    return name if name != "__metadata__" else "%5F_metadata__"  # safetensors keeps that one for itself


class _Block(NamedTuple):
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


class _Survey:
    """First pass: refuse what has no form, and find what occurs more than once."""

    def __init__(self) -> None:
        self.shared: set[int] = set()
        self.states: dict[int, Any] = {}
        """Plain data of each generator, read once."""
        self._seen: set[int] = set()
        self._open: set[int] = set()
        self._leaves: list[_Leaf] = []

    def visit(self, value: Any, path: Path, depth: int) -> None:
        kind = type(value)
        if kind in _IMMUTABLE:
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
        if kind in _DICTS or kind is collections.Counter:
            for key, item in value.items():
                self._visit_key(key, path)
                self.visit(item, (*path, key), depth)
        elif kind in _SETS:
            for item in value:
                self._visit_key(item, path)
        elif kind is not torch.Size and kind in _SEQUENCES:
            for index, item in enumerate(value):
                self.visit(item, (*path, index), depth)
        elif isinstance(value, torch.Tensor):
            self._visit_tensor(value, path)
        elif kind is np.ndarray:
            self._describe(value.dtype, path)
            self._leaves.append(_Leaf(value, memory.view_of_array(value), path, None))
        elif isinstance(value, np.generic):
            self._describe(value.dtype, path)
        elif kind in _GENERATORS or isinstance(value, np.random.BitGenerator):
            state = self.states[id(value)] = generator_state(value, path)
            self.visit(state, path, depth)
        elif kind not in {torch.Size, torch.dtype, torch.device} and not isinstance(value, np.dtype):
            raise _refusal(value, path)
        elif isinstance(value, np.dtype):
            self._describe(value, path)

    def _visit_key(self, key: Any, path: Path) -> None:
        if type(key) in _IMMUTABLE:
            return
        if type(key) not in {tuple, frozenset}:
            msg = f"{say(path)} has the key or item {key!r} of type {_type_name(key)}; keys and set items must be None, numbers, text, bytes, or tuples of them"
            raise UnsupportedStateError(msg)
        for item in key:
            self._visit_key(item, path)

    def _visit_tensor(self, tensor: torch.Tensor, path: Path) -> None:
        plain = type(tensor) in {torch.Tensor, torch.nn.Parameter}
        if not plain or tensor.layout is not torch.strided or tensor.device.type == "meta" or tensor.is_quantized:
            raise _refusal(tensor, path)
        if tensor.dtype not in dtypes.STORED | dtypes.AS_BYTES:
            msg = f"{say(path)} is a tensor of dtype {tensor.dtype}, which has no stored form; view it as torch.uint8"
            raise UnsupportedStateError(msg)
        self._leaves.append(_Leaf(tensor, memory.view_of_tensor(tensor), path, tensor.untyped_storage()))

    def _describe(self, dtype: dtypes.NumpyDType, path: Path) -> None:
        try:
            dtypes.describe_numpy(dtype)
        except UnsupportedStateError as error:
            msg = f"{say(path)}: {error}"
            raise UnsupportedStateError(msg) from None

    def blocks(self) -> dict[int, _Block]:
        """Decide what is stored, and which leaf sees which part of it, by the leaf's identity."""
        viewable = [leaf for leaf in self._leaves if leaf.value.nbytes and not _is_lazy(leaf.value)]
        first: dict[memory.View, _Leaf] = {}
        for leaf in viewable:
            first.setdefault(leaf.view, leaf)
        grouped: dict[memory.View, _Block] = {}
        for views in memory.sharing(first):
            block = _common_block([first[view] for view in views])
            grouped.update(dict.fromkeys(views, block))
        blocks = {
            id(leaf.value): _Block(tensor_name(leaf.path), _carrier_of(leaf.value), None) for leaf in self._leaves
        }
        for leaf in viewable:
            blocks[id(leaf.value)] = grouped.get(leaf.view) or blocks[id(first[leaf.view].value)]
        return blocks


def _common_block(leaves: list[_Leaf]) -> _Block:
    views = [leaf.view for leaf in leaves]
    start, end = min(view.first for view in views), max(view.end for view in views)
    for leaf in leaves:
        if leaf.view.first == start and leaf.view.end == end and leaf.view.row_major:
            return _Block(tensor_name(leaf.path), _carrier_of(leaf.value), start)
    pointers = {leaf.storage.data_ptr() if leaf.storage is not None else None for leaf in leaves}
    storage = leaves[0].storage if len(pointers) == 1 else None
    if storage is None and views[0].space != "cpu":
        msg = f"{say(leaves[0].path)} and {say(leaves[1].path)} share memory on {views[0].space} but not a storage; clone one"
        raise UnsupportedStateError(msg)
    name = min(tensor_name(leaf.path) for leaf in leaves) + "#shared"
    return _Block(name, lambda: memory.base_bytes(views, storage), memory.base_address(views, storage))


class _Writer:
    """Second pass: write the nodes."""

    def __init__(self, survey: _Survey) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self._survey = survey
        self._blocks = survey.blocks()
        self._names: dict[int, str] = {}
        self._ids: dict[int, int] = {}

    def node(self, value: Any, path: Path) -> Node:
        if id(value) not in self._survey.shared or type(value) in _IMMUTABLE:
            return self._new(value, path)
        number = self._ids.get(id(value))
        if number is not None:
            return nodes.Again(number)
        number = self._ids[id(value)] = len(self._ids)
        return nodes.Shared(number, self._new(value, path))

    def _new(self, value: Any, path: Path) -> Node:
        kind = type(value)
        if kind in _IMMUTABLE:
            return _scalar(value)
        if kind in _DICTS or kind is collections.Counter:
            pairs = [(self.node(key, path), self.node(item, (*path, key))) for key, item in value.items()]
            return nodes.Counter(pairs) if kind is collections.Counter else nodes.Dict(pairs)
        if kind in _SETS:
            members = sorted((self.node(item, path) for item in value), key=nodes.write_node)
            return nodes.Set(members) if kind is set else nodes.FrozenSet(members)
        if kind is torch.Size:
            return nodes.Size(list(value))
        if kind in _SEQUENCES:
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
        view = memory.view_of_tensor(tensor)
        lazy = _is_lazy(tensor)
        strides = None
        if tensor.nbytes and not view.row_major and not lazy and (block.address is not None or view.dense):
            strides = list(tensor.stride())
        offset = view.start - block.address if block.address is not None and not lazy else None
        requires_grad = tensor.requires_grad if type(tensor) is torch.nn.Parameter else None
        return nodes.Tensor(name, dtypes.dtype_name(tensor.dtype), list(tensor.shape), strides, offset, requires_grad)

    def _array(self, array: "np.ndarray[tuple[int, ...], np.dtype[np.generic]]") -> Node:
        block = self._blocks[id(array)]
        name = self._store(block)
        view = memory.view_of_array(array)
        strides = None
        if array.nbytes and not view.row_major and (block.address is not None or view.dense):
            strides = list(array.strides)
        # A mirrored array alone is stored in its own order, so its strides must be those of a copy.
        if block.address is None and strides is not None and min(strides) < 0:
            strides = None
        offset = view.start - block.address if block.address is not None and array.nbytes else None
        return nodes.Array(name, dtypes.describe_numpy(array.dtype), list(array.shape), strides, offset)

    def _store(self, block: _Block) -> str:
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


class _Reader:
    """Makes plain data from nodes."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._stored = tensors
        self._tensors: dict[str, torch.Tensor] = {}
        self._flat: dict[str, torch.Tensor] = {}
        self._strided: dict[tuple[Any, ...], Any] = {}
        self._shared: dict[int, Any] = {}

    def value(self, node: Node) -> Any:
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
                return _make_bit_generator(node.name, self.value(node.state), self.value(node.seed))
            case nodes.NumpyGenerator():
                return np.random.Generator(self.value(node.bit_generator))
            case nodes.NumpyRandomState():
                return _make_random_state(self.value(node.state))
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
        if isinstance(value, (*_IMMUTABLE, tuple, frozenset)):
            return value
        raise StateCorruptError(f"the state document has a key of type {_type_name(value)}")

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
                if not memory.View("", 0, tuple(node.shape), tuple(node.strides), 1).dense:
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


def generator_state(generator: Any, path: Path = ()) -> Any:
    """Return a generator's state as plain data, without drawing from it.

    Args:
        generator: a ``random.Random``, ``torch.Generator``, or NumPy ``Generator``, ``RandomState`` or bit generator.
        path: where it is, for the message.

    Raises:
        UnsupportedStateError: it is of a class whose state is not known.
    """
    if isinstance(generator, random.Random):
        if isinstance(generator, random.SystemRandom):
            raise _refusal(generator, path)
        return generator.getstate()
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator
    if isinstance(generator, np.random.RandomState):
        return generator.get_state(legacy=False)
    name = type(generator).__name__
    if BIT_GENERATORS.get(name) is not type(generator):
        raise _refusal(generator, path)
    seed = generator.seed_seq
    spawning = None
    if type(seed) is np.random.SeedSequence:
        spawning = {
            "entropy": seed.entropy,
            "spawn_key": tuple(seed.spawn_key),
            "pool_size": seed.pool_size,
            "n_children_spawned": seed.n_children_spawned,
        }
    return {"state": generator.state, "seed": spawning}


def _make_bit_generator(name: str, state: Any, seed: Any) -> np.random.BitGenerator:
    kind = BIT_GENERATORS.get(name)
    if kind is None:
        raise StateCorruptError(
            f"the state document names a bit generator {name!r}; known are {sorted(BIT_GENERATORS)}"
        )
    generator = kind() if seed is None else kind(np.random.SeedSequence(**seed))
    generator.state = state
    return generator


def _make_random_state(state: Any) -> np.random.RandomState:
    kind = BIT_GENERATORS.get(state["bit_generator"])
    if kind is None:
        raise StateCorruptError(f"the state document names a bit generator {state['bit_generator']!r}")
    made = np.random.RandomState(kind())
    made.set_state(state)
    return made


def _is_lazy(value: Any) -> bool:
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


def _type_name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")


def _refusal(value: Any, path: Path) -> UnsupportedStateError:
    remedy = "give it state_dict() and load_state_dict(), or save plain data in its place"
    if isinstance(value, torch.Tensor) and value.layout is not torch.strided:
        remedy = "save its indices and values, or to_dense()"
    else:
        remedy = next((text for kind, text in _REMEDIES if isinstance(value, kind)), remedy)
    return UnsupportedStateError(f"{say(path)} is a {_type_name(value)}, which has no form in a state tree; {remedy}")


def _escape(text: str) -> str:
    """Escape what separates names, and what a terminal or a file name could not show."""
    return "".join(
        char
        if char.isprintable() and char not in "/%#"
        else "".join(f"%{b:02X}" for b in char.encode("utf-8", "surrogatepass"))
        for char in text
    )
