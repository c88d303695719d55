"""The typed form of a state document, as it is written to JSON.

A document is ``{"format": "bitproof-state", "version": 1, "root": NODE}``. A node is a JSON scalar (null, true, an
integer of at most 64 bits, a finite float, well-formed text), or an object whose ``is`` says what it stands for.
Decoding is strict: an unknown field, tag or type is an error, and no tag makes anything but plain data.
"""

from typing import Any

import msgspec

from bitproof.state.errors import StateCorruptError, StateVersionError

FORMAT = "bitproof-state"
VERSION = 1


class _Node(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="is", tag=str.lower):
    """Base of every object in a document."""


class Int(_Node, frozen=True):
    """An integer of more than 64 bits."""

    hex: str


class Float(_Node, frozen=True):
    """A NaN or an infinity, by the 16 hexadecimal digits of its IEEE 754 bits."""

    bits: str


class Complex(_Node, frozen=True):
    """A complex number, by the bits of its parts."""

    real: str
    imag: str


class Text(_Node, frozen=True):
    """Text with lone surrogates, as UTF-8 with surrogates passed, in hexadecimal."""

    hex: str


class Bytes(_Node, frozen=True):
    """Bytes, in Base64."""

    data: bytes


class List(_Node, frozen=True):
    """A list."""

    items: "list[Node]"


class Tuple(_Node, frozen=True):
    """A tuple."""

    items: "list[Node]"


class Set(_Node, frozen=True):
    """A set; its items are sorted by their bytes, so that a document does not depend on hashing."""

    items: "list[Node]"


class FrozenSet(_Node, frozen=True):
    """A frozenset, written like a set."""

    items: "list[Node]"


class Deque(_Node, frozen=True):
    """A deque."""

    items: "list[Node]"
    maxlen: int | None = None


class Dict(_Node, frozen=True):
    """A dict in its order."""

    items: "list[tuple[Node, Node]]"


class Counter(_Node, frozen=True):
    """A ``collections.Counter``, which ``MultiStepLR`` has in its state."""

    items: "list[tuple[Node, Node]]"


class Shared(_Node, frozen=True):
    """The first place of an object that the tree holds more than once."""

    id: int
    value: "Node"


class Again(_Node, frozen=True):
    """A further place of a shared object."""

    id: int


class Tensor(_Node, frozen=True):
    """A tensor: the name of its bytes, and how they are to be seen.

    ``strides`` (in elements) is missing for a row-major tensor. ``offset`` (in bytes) is there for a view into a
    tensor that several share. ``requires_grad`` is there for an ``nn.Parameter`` only.
    """

    name: str
    dtype: str
    shape: list[int]
    strides: list[int] | None = None
    offset: int | None = None
    requires_grad: bool | None = None


class Array(_Node, frozen=True):
    """A NumPy array, like a tensor; ``strides`` are in bytes and ``dtype`` is as in an ``.npy`` file."""

    name: str
    dtype: Any
    shape: list[int]
    strides: list[int] | None = None
    offset: int | None = None


class NumpyScalar(_Node, frozen=True):
    """A NumPy scalar, by its bytes in hexadecimal."""

    dtype: Any
    hex: str


class PythonRandom(_Node, frozen=True):
    """A ``random.Random``, by what ``getstate()`` gives."""

    state: "Node"


class BitGenerator(_Node, frozen=True):
    """A NumPy bit generator: the class's name, its ``state``, and its seed sequence if it can spawn."""

    name: str
    state: "Node"
    seed: "Node" = None


class NumpyGenerator(_Node, frozen=True):
    """A ``numpy.random.Generator`` over a bit generator."""

    bit_generator: "Node"


class NumpyRandomState(_Node, frozen=True):
    """A legacy ``numpy.random.RandomState``, by what ``get_state(legacy=False)`` gives."""

    state: "Node"


class TorchGenerator(_Node, frozen=True):
    """A ``torch.Generator``."""

    device: str
    state: "Node"


class Size(_Node, frozen=True):
    """A ``torch.Size``."""

    items: list[int]


class DType(_Node, frozen=True):
    """A ``torch.dtype``."""

    name: str


class Device(_Node, frozen=True):
    """A ``torch.device``."""

    name: str


class NumpyDType(_Node, frozen=True):
    """A NumPy dtype."""

    dtype: Any


Node = (
    None
    | bool
    | int
    | float
    | str
    | Int
    | Float
    | Complex
    | Text
    | Bytes
    | List
    | Tuple
    | Set
    | FrozenSet
    | Deque
    | Dict
    | Counter
    | Shared
    | Again
    | Tensor
    | Array
    | NumpyScalar
    | PythonRandom
    | BitGenerator
    | NumpyGenerator
    | NumpyRandomState
    | TorchGenerator
    | Size
    | DType
    | Device
    | NumpyDType
)


class _Header(msgspec.Struct, frozen=True):
    """What every version of a document starts with."""

    format: str
    version: int


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole document."""

    format: str
    version: int
    root: Node


_encoder = msgspec.json.Encoder()
_headers = msgspec.json.Decoder(_Header)
_documents = msgspec.json.Decoder(_Document)


def write(root: Node) -> bytes:
    """Write a document; the same nodes always give the same bytes."""
    return _encoder.encode(_Document(FORMAT, VERSION, root))


def write_node(node: Node) -> bytes:
    """Write one node, as a key to sort by."""
    return _encoder.encode(node)


def read(document: bytes) -> Node:
    """Read a document strictly.

    Raises:
        StateVersionError: another version wrote it.
        StateCorruptError: it is not a state document, or anything in it is not as the format says.
    """
    try:
        header = _headers.decode(document)
        if header.format == FORMAT and header.version != VERSION:
            msg = f"the state document has version {header.version}; this bitproof reads version {VERSION}. Install the bitproof that wrote it."
            raise StateVersionError(msg)
        if header.format != FORMAT:
            msg = f"not a state document: its format is {header.format!r}, expected {FORMAT!r}"
            raise StateCorruptError(msg)
        return _documents.decode(document).root
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        msg = f"the state document is damaged: {error}"
        raise StateCorruptError(msg) from error
