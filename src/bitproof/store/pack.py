"""A pack: one safetensors file, immutable, named by its content.

The format is written here, and not by safetensors' own writer, so that every write passes the one place that touches
the system and is digested as it goes; any safetensors reader opens the file. The name is XXH3-128 of the header (the
length before it included) followed by the 16-byte digests of the tensors in file order: a digest of the whole content
in one pass over the tensors.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from xxhash import xxh3_128_hexdigest

from bitproof.errors import CheckpointCorruptError, UsageError
from bitproof.fingerprint import view_bytes
from bitproof.store.dtypes import DTYPES, ITEM_SIZES, NAMES, safetensors_view
from bitproof.store.hashing import Hasher
from bitproof.store.manifest import Entry, Pack
from bitproof.store.system import System

DOCUMENT = "__document__"
"""The name under which a pack holds a checkpoint's document."""

_ALIGNMENT = 64  # bytes; safetensors asks for 8
_LONGEST_HEADER = 100_000_000  # what safetensors' readers accept


@dataclass(frozen=True)
class Piece:
    """One tensor to be written: its name, its row-major bytes, and what keeps them alive."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: memoryview
    owner: Any


def piece_of(name: str, tensor: torch.Tensor) -> Piece:
    """Make a tensor ready to be written, without a copy if it is contiguous and on the host.

    Args:
        name: any text but ``__document__`` and ``__metadata__``.
        tensor: strided, any dtype that :mod:`bitproof.store.dtypes` lists, any shape and device.

    Raises:
        UsageError: another name, layout or dtype was expected.
    """
    if name in {DOCUMENT, "__metadata__"}:
        raise UsageError(f"A tensor cannot be saved under the name {name!r}: the store uses it itself.")
    if tensor.layout != torch.strided or tensor.dtype not in NAMES or tensor.device.type == "meta":
        raise UsageError(
            f"Cannot save {name!r}: expected a strided tensor with storage of a dtype among {', '.join(DTYPES)}, found "
            f"{tensor.dtype} ({tensor.layout}, {tensor.device.type}). Save its parts as tensors of their own."
        )
    owner = tensor.detach().cpu().contiguous().resolve_conj().resolve_neg()
    data = memoryview(view_bytes(owner)).cast("B") if owner.nbytes else memoryview(b"")
    return Piece(name, NAMES[owner.dtype], tuple(owner.shape), data, owner)


def piece_of_document(document: bytes) -> Piece:
    """Make a document ready to be written."""
    return Piece(DOCUMENT, "uint8", (len(document),), memoryview(document), document)


def in_file_order(pieces: list[Piece]) -> list[Piece]:
    """Order pieces by falling width of their elements, so that each is aligned for its dtype."""
    return sorted(pieces, key=lambda piece: -ITEM_SIZES[piece.dtype])


def header_of(pieces: list[Piece]) -> bytes:
    """Return the bytes before the tensors: the header's length, and the header padded with spaces."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    for piece, start in zip(pieces, offsets(pieces, 0), strict=True):
        dtype, shape = safetensors_view(piece.dtype, piece.shape)
        header[piece.name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, start + len(piece.data)]}
    text = msgspec.json.encode(header)
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    if len(text) > _LONGEST_HEADER:
        raise UsageError(
            f"{len(pieces)} tensors make a header of {len(text)} bytes, and {_LONGEST_HEADER} is the most."
        )
    return len(text).to_bytes(8, "little") + text


def offsets(pieces: list[Piece], start: int) -> list[int]:
    """Return where each piece begins, if the first begins at ``start``."""
    return list(itertools.accumulate((len(piece.data) for piece in pieces), initial=start))[:-1]


def name_of(header: bytes, digests: list[str]) -> str:
    """Return the name of the pack with these bytes before the tensors and these digests."""
    return xxh3_128_hexdigest(header + b"".join(bytes.fromhex(digest) for digest in digests))


class MappedPack:
    """A pack's file, mapped whole; it stays readable when the file is replaced or removed.

    Raises:
        CheckpointCorruptError: its size or its header are not those of the commit.
        FileNotFoundError: it is not there.
    """

    def __init__(self, system: System, path: Path, pack: Pack) -> None:
        size = system.size(path)
        if size != pack.size:
            found = "is not a regular file" if size < 0 else f"has {size} bytes"
            raise CheckpointCorruptError(f"{path} {found}; expected a file of {pack.size} bytes.")
        self._path = path
        self._map = system.map(path)
        self.data = memoryview(self._map)
        length, digest = pack.header
        found = xxh3_128_hexdigest(self.data[:length])
        if found != digest:
            raise CheckpointCorruptError(f"{path} is damaged: its header's digest should be {digest} and is {found}.")

    def bytes_of(self, entry: Entry) -> memoryview:
        """Return a tensor's bytes, not verified."""
        return self.data[entry.offset : entry.offset + entry.nbytes]

    def tensor(self, entry: Entry) -> torch.Tensor:
        """Return a tensor over the map, not verified; writing into it changes the map and never the file."""
        if entry.nbytes == 0:
            return torch.empty(entry.shape, dtype=DTYPES[entry.dtype])
        flat = torch.frombuffer(self._map, dtype=torch.uint8, count=entry.nbytes, offset=entry.offset)
        return flat.view(DTYPES[entry.dtype]).view(entry.shape)


def damage(system: System, path: Path) -> str | None:
    """Say what is wrong with a pack, by reading every bit of it; None if nothing is."""
    try:
        data = memoryview(system.map(path))
        length = 8 + int.from_bytes(data[:8], "little")
        if len(data) < 8 or length > len(data):
            return "it is cut"
        header = bytes(data[:length])
        spans = _spans(msgspec.json.decode(header[8:]))
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    except (msgspec.MsgspecError, UnicodeDecodeError, LookupError, TypeError, ValueError) as error:
        return f"its header is damaged: {error}"
    if any(start > end for start, end in spans) or (spans[-1][1] if spans else 0) != len(data) - length:
        return "its length is not what its header says"
    with Hasher(len(data)) as hasher:
        jobs = [hasher.digest(data[length + start : length + end]) for start, end in spans]
        found = name_of(header, [job.result() for job in jobs])
    return None if found == path.stem else f"its content has the digest {found}"


def _spans(header: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Return where the tensors begin and end, in file order, which is the order of the header."""
    return [tuple(int(at) for at in value["data_offsets"]) for name, value in header.items() if name != "__metadata__"]  # type: ignore[misc]  # two of them
