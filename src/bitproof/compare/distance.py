"""How far apart two tensors or values are, judged by what a sketch keeps of each."""

import struct

_FLOATS = {"float64": ("<d", "<q", 64), "float32": ("<f", "<i", 32), "float16": ("<e", "<h", 16)}
_WHOLE = {"int64": "<q", "int32": "<i", "int16": "<h", "int8": "<b", "uint8": "<B", "bool": "<?"}


def describe(kind: str, one: bytes, other: bytes) -> str | None:
    """Say how far apart, such as ``0.13 where the reference has 0.12 (7 ULP)``; None if nothing kept of it differs.

    Args:
        kind: dtype and shape, as a layout has them; ``value`` for a plain value.
        one: the reference's 24 bytes: three elements, or a plain value's text.
        other: likewise, of the other side.
    """
    dtype = kind.partition("[")[0]
    if len(one) != 24 or len(other) != 24 or one == other:
        return None
    if dtype == "value":
        said = one.rstrip(b"\0").decode(errors="replace"), other.rstrip(b"\0").decode(errors="replace")
        return f"{said[1]} where the reference has {said[0]}" if all(said) else None
    pairs = [(one[i : i + 8], other[i : i + 8]) for i in (0, 8, 16) if one[i : i + 8] != other[i : i + 8]]
    if dtype in _FLOATS:
        apart = max((ulp(dtype, a, b), _value(dtype, a), _value(dtype, b)) for a, b in pairs)
        return f"{apart[2]:.6g} where the reference has {apart[1]:.6g} ({apart[0]:,} ULP)"
    if dtype in _WHOLE:
        numbers = [struct.unpack_from(_WHOLE[dtype], side)[0] for side in pairs[0]]
        return f"{numbers[1]} where the reference has {numbers[0]}"
    return None


def ulp(dtype: str, one: bytes, other: bytes) -> int:
    """Count the representable numbers between two values (units in the last place).

    Args:
        dtype: ``float64``, ``float32`` or ``float16``.
        one: the value's bytes, left-aligned.
        other: likewise.
    """
    return abs(_ordinal(dtype, one) - _ordinal(dtype, other))


def _ordinal(dtype: str, data: bytes) -> int:
    _, whole, bits = _FLOATS[dtype]
    number: int = struct.unpack_from(whole, data)[0]
    return number if number >= 0 else -(number + (1 << (bits - 1)))


def _value(dtype: str, data: bytes) -> float:
    value: float = struct.unpack_from(_FLOATS[dtype][0], data)[0]
    return value
