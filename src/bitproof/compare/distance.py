"""How far apart two tensors are, judged by the three elements that a sketch keeps of each."""

import struct

_FORMATS = {"float64": ("<d", "<q", 64), "float32": ("<f", "<i", 32), "float16": ("<e", "<h", 16)}


def describe(kind: str, one: bytes, other: bytes) -> str | None:
    """Say how far the kept elements are apart, such as ``0.12 against 0.13 (7 ULP)``; None if they are equal.

    Args:
        kind: dtype and shape, as a layout has them.
        one: 24 bytes, three elements.
        other: likewise.
    """
    dtype = kind.partition("[")[0]
    if dtype not in _FORMATS or len(one) != 24 or len(other) != 24 or one == other:
        return None
    pairs = [(one[i : i + 8], other[i : i + 8]) for i in (0, 8, 16) if one[i : i + 8] != other[i : i + 8]]
    apart = max((ulp(dtype, a, b), _value(dtype, a), _value(dtype, b)) for a, b in pairs)
    return f"{apart[1]:.6g} against {apart[2]:.6g} ({apart[0]:,} ULP)"


def ulp(dtype: str, one: bytes, other: bytes) -> int:
    """Count the representable numbers between two values (units in the last place).

    Args:
        dtype: ``float64``, ``float32`` or ``float16``.
        one: the value's bytes, left-aligned.
        other: likewise.
    """
    return abs(_ordinal(dtype, one) - _ordinal(dtype, other))


def _ordinal(dtype: str, data: bytes) -> int:
    _, whole, bits = _FORMATS[dtype]
    number: int = struct.unpack_from(whole, data)[0]
    return number if number >= 0 else -(number + (1 << (bits - 1)))


def _value(dtype: str, data: bytes) -> float:
    value: float = struct.unpack_from(_FORMATS[dtype][0], data)[0]
    return value
