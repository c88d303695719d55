"""Exact bytes to a 64-bit digest, on the host and on a device.

On the host a tensor's digest is XXH3-64 (Yann Collet, xxHash 0.8) of its elements in row-major order.
On a device it is ``mad64``: every 8-byte word *w* at position *i* of the row-major bytes gives
``mix(w + (i + 1) * GAMMA)``, and the digest is the sum of these modulo 2**64. Integer addition is associative, so the
sum does not depend on the order in which a kernel adds, and the sum over shards (each started at its own offset)
equals the sum over the whole. ``mix`` is the finalizer of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).

Neither looks at dtype or shape; a trail keeps those beside the digest.
"""

import ctypes
import os
import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from xxhash import xxh3_64_intdigest

if TYPE_CHECKING:
    import torch

HOST_ALGORITHM = "xxh3-64"
DEVICE_ALGORITHM = "mad64-1"
ABSENT = 0
"""The digest of something that is not there (a gradient that is None). No content has it."""

_GAMMA = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_ELEMENT = 8
_GAPS = {width: bytes(_ELEMENT - width) for width in range(1, _ELEMENT + 1)}
_LARGE = 1 << 16
_WORTH_THREADS = 1 << 23
_CORES = min(4, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
"""Threads that hash; a few cores saturate the memory."""
_MOST_FORMS = 1 << 14
_buffers: dict[int, type[ctypes.Array[ctypes.c_char]]] = {}


class _Form(NamedTuple):
    """What tensors of one dtype and shape have in common: where their sketch lies in their bytes."""

    size: int
    """Bytes; 0 if there is no sketch of such a tensor, as it is empty or its elements are wide."""
    buffer: type[ctypes.Array[ctypes.c_char]]
    width: int
    middle: int
    middle_end: int
    last: int
    gap: bytes


_forms: dict[tuple[Any, Any], _Form] = {}


def digest_bytes(data: bytes | bytearray | memoryview) -> int:
    """Digest bytes with XXH3-64; never :data:`ABSENT`."""
    return xxh3_64_intdigest(data) or 1


def digest_text(text: str) -> int:
    """Digest a text's UTF-8 bytes."""
    return xxh3_64_intdigest(text.encode("utf-8", "surrogatepass")) or 1


def combine(digests: Iterable[int]) -> int:
    """Digest a sequence of digests, in order."""
    return xxh3_64_intdigest(b"".join(d.to_bytes(8, "little") for d in digests)) or 1


def view_bytes(tensor: "torch.Tensor") -> "ctypes.Array[ctypes.c_char]":
    """Return the bytes of a contiguous host tensor without copying them.

    The array is valid only while ``tensor`` is alive.

    Raises:
        RuntimeError: it has none, as a fake tensor or a wrapper around others.
    """
    # An address instead of Tensor.numpy(): NumPy has no bfloat16 or float8, and refuses tensors that require gradients.
    return _buffer_type(tensor.nbytes).from_address(_address(tensor))


def _buffer_type(size: int) -> type[ctypes.Array[ctypes.c_char]]:
    buffer = _buffers.get(size)
    if buffer is None:
        buffer = _buffers[size] = ctypes.c_char * size
    return buffer


def _address(tensor: "torch.Tensor") -> int:
    address = tensor.data_ptr()
    if address == 0 and tensor.nbytes:
        msg = f"a {type(tensor).__name__} has no bytes of its own on the host"
        raise RuntimeError(msg)
    return address


def digest_tensor(tensor: "torch.Tensor") -> int:
    """Digest a tensor of any dtype, shape and strided layout, on any device.

    Args:
        tensor: any strided tensor; an empty one has a digest too.

    Returns:
        XXH3-64 of the row-major bytes for a host tensor, ``mad64`` of them otherwise.

    Raises:
        RuntimeError: the tensor has no bytes of its own.
    """
    if tensor.device.type != "cpu":
        return int(digest_on_device(tensor).item()) & 0xFFFFFFFFFFFFFFFF or 1
    if not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
        tensor = _row_major(tensor)
    if tensor.nbytes == 0:
        return digest_bytes(b"")
    return xxh3_64_intdigest(view_bytes(tensor)) or 1


def digest_and_sketch(tensor: "torch.Tensor") -> tuple[int, bytes]:
    """Digest a tensor, and keep three of its elements.

    Args:
        tensor: any strided tensor.

    Returns:
        What :func:`digest_tensor` gives; and the first, middle and last element in row-major order, each left-aligned
        in 8 bytes (zeros for a tensor that is empty, not on the host, or of wider elements).
    """
    form = _plain_form(tensor)
    if form is None:
        return digest_tensor(tensor), bytes(3 * _ELEMENT)
    data = form.buffer.from_address(_address(tensor))
    return xxh3_64_intdigest(data) or 1, _sketch(form, data)


def _plain_form(tensor: "torch.Tensor") -> _Form | None:
    """Return the form of a tensor whose memory is its row-major bytes, in elements that a sketch holds; else None."""
    form = _forms.get((tensor.dtype, tensor.shape)) or _new_form(tensor)
    if form.size and tensor.is_cpu and tensor.is_contiguous() and not (tensor.is_neg() or tensor.is_conj()):
        return form
    return None


def _new_form(tensor: "torch.Tensor") -> _Form:
    size, width = tensor.nbytes, tensor.element_size()
    if width > _ELEMENT:
        size = 0
    middle = size // width // 2 * width
    form = _Form(size, _buffer_type(size), width, middle, middle + width, size - width, _GAPS[min(width, _ELEMENT)])
    if len(_forms) == _MOST_FORMS:
        _forms.clear()
    _forms[tensor.dtype, tensor.shape] = form
    return form


def _sketch(form: _Form, data: Any) -> bytes:
    _, _, width, middle, middle_end, last, gap = form
    sketch: bytes = data[:width] + gap + data[middle:middle_end] + gap + data[last:] + gap
    return sketch


def digest_all(tensors: "Sequence[torch.Tensor]") -> list[tuple[int, bytes]]:
    """Digest and sketch many tensors, with several threads where they are large.

    Hashing releases the interpreter's lock, and one core reads memory more slowly than the memory can give it.

    Args:
        tensors: any strided tensors; nothing may write to them meanwhile.

    Returns:
        What :func:`digest_and_sketch` gives for each.
    """
    if _CORES == 1 or sum([tensor.nbytes for tensor in tensors]) < _WORTH_THREADS:
        return [digest_and_sketch(tensor) for tensor in tensors]
    forms = [_plain_form(tensor) for tensor in tensors]
    large = [i for i, form in enumerate(forms) if form is not None and form.size >= _LARGE]
    digests: dict[int, int] = {}

    def work(share: list[int]) -> None:
        # In one call, so that the lock is taken for an instant between two tensors, and no longer.
        digests.update(zip(share, map(xxh3_64_intdigest, [views[i] for i in share]), strict=True))

    views = {i: view_bytes(tensors[i]) for i in large}
    first, *others = _shares(large, [tensor.nbytes for tensor in tensors])
    threads = [threading.Thread(target=work, args=(share,), daemon=True) for share in others]
    for thread in threads:
        thread.start()
    work(first)
    for thread in threads:
        thread.join()
    return [
        (digests[i] or 1, _sketch(form, views[i])) if form is not None and i in digests else digest_and_sketch(tensor)
        for i, (tensor, form) in enumerate(zip(tensors, forms, strict=True))
    ]


def _shares(large: list[int], sizes: list[int]) -> list[list[int]]:
    """Deal out tensors to the threads, the largest first, each to the one with the least to do."""
    shares: list[list[int]] = [[] for _ in range(_CORES)]
    loads = [0] * _CORES
    for i in sorted(large, key=sizes.__getitem__, reverse=True):
        least = loads.index(min(loads))
        shares[least].append(i)
        loads[least] += sizes[i]
    return shares


def digest_rows(tensor: "torch.Tensor") -> list[int]:
    """Digest each row of a tensor along its first dimension.

    Args:
        tensor: shape ``(n, ...)``, any dtype, strided.

    Returns:
        *n* digests; on the host each is XXH3-64 of the row's bytes.
    """
    if tensor.device.type != "cpu":
        return [digest_tensor(row) for row in tensor.detach()]
    if not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
        tensor = _row_major(tensor)
    rows = tensor.shape[0]
    if tensor.nbytes == 0:
        return [digest_bytes(b"")] * rows
    data = memoryview(view_bytes(tensor)).cast("B")
    width = tensor.nbytes // rows
    return [xxh3_64_intdigest(data[start : start + width]) or 1 for start in range(0, tensor.nbytes, width)]


def digest_on_device(tensor: "torch.Tensor", offset: int = 0) -> "torch.Tensor":
    """Digest a tensor with ``mad64`` where it is, without a copy to the host.

    Args:
        tensor: any dtype and shape, on any device.
        offset: position of the tensor's first 8-byte word in the whole tensor, for a shard (whose byte length must
            then be a multiple of 8, except for the last).

    Returns:
        A 0-dimensional int64 tensor on the same device: the sum modulo 2**64.
    """
    import torch  # noqa: PLC0415  # this module must import without torch

    data = _row_major(tensor).reshape(-1).view(torch.uint8)
    tail = -data.numel() % 8
    if tail:
        data = torch.cat([data, data.new_zeros(tail)])
    words = data.view(torch.int64)
    positions = torch.arange(offset + 1, offset + 1 + words.numel(), dtype=torch.int64, device=words.device)
    mixed = words + positions * _signed(_GAMMA)
    mixed = (mixed ^ _shift_right(mixed, 30)) * _signed(_MIX_1)
    mixed = (mixed ^ _shift_right(mixed, 27)) * _signed(_MIX_2)
    return (mixed ^ _shift_right(mixed, 31)).sum()


def _row_major(tensor: "torch.Tensor") -> "torch.Tensor":
    """Return the same values in row-major order, with conjugation and negation carried out."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def _signed(value: int) -> int:
    """Return the int64 with the same 64 bits as an unsigned value."""
    return value - (1 << 64) if value >= 1 << 63 else value


def _shift_right(words: "torch.Tensor", bits: int) -> "torch.Tensor":
    """Shift int64 words right without sign extension."""
    return (words >> bits) & ((1 << (64 - bits)) - 1)
