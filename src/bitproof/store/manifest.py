"""A commit: one JSON file that says what a checkpoint is made of, with a digest of itself.

::

    {
        "xxh3_128": "<32 hex digits: of the bytes of what follows>",
        "checkpoint": {
            "format": 1,
            "sequence": 120,
            "step": 12000,
            "saved_at": "2026-01-31T12:00:00Z",
            "facts": {"val_loss": 0.25},
            "size": 4096,
            "written": 512,
            "packs": [{"name": "<32 hex digits>", "size": 4352, "header": [256, "<32 hex digits>"]}],
            "document": [0, 4000, "uint8", [96], "<32 hex digits>"],
            "tensors": {"model/weight": [0, 256, "float32", [10, 64], "<32 hex digits>"]},
        },
    }

An entry is: index of the pack, offset in its file, dtype, shape, XXH3-128 of the row-major bytes. No name in it is a
path: a pack's file is found from 32 hex digits, so that nothing can point out of the store.
"""

import math
from typing import Annotated, Any

import msgspec
from xxhash import xxh3_128_hexdigest

from bitproof.errors import CheckpointCorruptError, StoreVersionError
from bitproof.store.dtypes import ITEM_SIZES

FORMAT = 1

Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
_Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class Pack(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of tensors: its name, its size in bytes, and its header's length and digest."""

    name: Digest
    size: _Count
    header: tuple[_Count, Digest]


class Entry(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Where one tensor's bytes are, and what they must be."""

    pack: _Count
    offset: _Count
    dtype: str
    shape: tuple[_Count, ...]
    digest: Digest

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * ITEM_SIZES[self.dtype]


class Commit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One committed checkpoint, without its tensors.

    Attributes:
        sequence: the store's own number, counted from 1, never used twice.
        step: the training step it is of; two checkpoints may be of one step.
        saved_at: UTC time of the save, for people; nothing is decided by it.
        facts: what the saver noted, such as a validation loss.
        size: bytes of all its tensors and its document.
        written: bytes that were written for it, the rest being shared with earlier ones.
        packs: the files it needs.
    """

    sequence: _Count
    step: _Count
    saved_at: str
    facts: dict[str, Any]
    size: _Count
    written: _Count
    packs: tuple[Pack, ...]


class Contents(msgspec.Struct, frozen=True):
    """What a commit is made of."""

    document: Entry
    tensors: dict[str, Entry]


class _Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: int
    sequence: _Count
    step: _Count
    saved_at: str
    facts: dict[str, Any]
    size: _Count
    written: _Count
    packs: tuple[Pack, ...]
    document: msgspec.Raw  # decoded only when the checkpoint is opened: a listing reads a thousand of these
    tensors: msgspec.Raw


class _Envelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    xxh3_128: str
    checkpoint: msgspec.Raw


class _Format(msgspec.Struct, frozen=True):
    format: int


class Manifest(msgspec.Struct, frozen=True):
    """A commit as it was read, its contents still undecoded."""

    commit: Commit
    document: msgspec.Raw
    tensors: msgspec.Raw

    def contents(self) -> Contents:
        """Decode and check what the checkpoint is made of.

        Raises:
            CheckpointCorruptError: an entry lies outside its pack, or is of an unknown dtype.
        """
        try:
            found = Contents(
                msgspec.json.decode(self.document, type=Entry),
                msgspec.json.decode(self.tensors, type=dict[str, Entry]),
            )
        except msgspec.MsgspecError as error:
            raise CheckpointCorruptError(
                f"The manifest of checkpoint {self.commit.sequence} is not valid: {error}"
            ) from error
        for name, entry in (("the document", found.document), *found.tensors.items()):
            _check_entry(self.commit, name, entry)
        return found


def encode(commit: Commit, contents: Contents) -> bytes:
    """Encode a commit as the bytes of its file."""
    body = msgspec.json.encode(
        _Body(
            FORMAT,
            commit.sequence,
            commit.step,
            commit.saved_at,
            commit.facts,
            commit.size,
            commit.written,
            commit.packs,
            msgspec.Raw(msgspec.json.encode(contents.document)),
            msgspec.Raw(msgspec.json.encode(contents.tensors)),
        )
    )
    return msgspec.json.encode(_Envelope(xxh3_128_hexdigest(body), msgspec.Raw(body))) + b"\n"


def decode(data: bytes, where: str) -> Manifest:
    """Decode a commit's file.

    Args:
        data: the bytes of the file.
        where: the file, for messages.

    Raises:
        CheckpointCorruptError: any bit of it is not as it was written, or it is not a commit.
        StoreVersionError: it is whole, and of another version of the format.
    """
    try:
        envelope = msgspec.json.decode(data, type=_Envelope)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise CheckpointCorruptError(f"{where} is not a commit: {error}") from error
    digest = xxh3_128_hexdigest(envelope.checkpoint)
    # Encoded again, it must give the same bytes: otherwise a flipped bit could hide in what the digest does not cover.
    if digest != envelope.xxh3_128 or msgspec.json.encode(envelope) + b"\n" != data:
        raise CheckpointCorruptError(
            f"{where} is damaged: its digest should be {envelope.xxh3_128[:40]!r} and is {digest!r}."
        )
    try:
        found = msgspec.json.decode(envelope.checkpoint, type=_Format).format
        if found != FORMAT:
            raise StoreVersionError(
                f"{where} is in format {found}, and this bitproof reads format {FORMAT}. Read it with the version of "
                "bitproof that wrote it."
            )
        body = msgspec.json.decode(envelope.checkpoint, type=_Body)
    except msgspec.MsgspecError as error:
        raise CheckpointCorruptError(f"{where} is not a commit: {error}") from error
    commit = Commit(body.sequence, body.step, body.saved_at, body.facts, body.size, body.written, body.packs)
    return Manifest(commit, body.document, body.tensors)


def _check_entry(commit: Commit, name: str, entry: Entry) -> None:
    where = f"The manifest of checkpoint {commit.sequence} is not valid: {name}"
    if entry.dtype not in ITEM_SIZES:
        raise CheckpointCorruptError(f"{where} is of the unknown dtype {entry.dtype!r}.")
    if entry.pack >= len(commit.packs):
        raise CheckpointCorruptError(f"{where} is in pack {entry.pack} of {len(commit.packs)}.")
    pack = commit.packs[entry.pack]
    if entry.offset < pack.header[0] or entry.offset + entry.nbytes > pack.size:
        raise CheckpointCorruptError(
            f"{where} is at bytes {entry.offset} to {entry.offset + entry.nbytes} of a pack that holds tensors from "
            f"{pack.header[0]} to {pack.size}."
        )
