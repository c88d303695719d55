"""Dtypes by name, in documents that anyone may have written."""

import re
from typing import Any

import numpy as np
import torch

from bitproof.state.errors import StateCorruptError, UnsupportedStateError

STORED = frozenset(
    {
        torch.bool,
        torch.uint8,
        torch.uint16,
        torch.uint32,
        torch.uint64,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.complex64,
        torch.float8_e4m3fn,
        torch.float8_e4m3fnuz,
        torch.float8_e5m2,
        torch.float8_e5m2fnuz,
    }
)
"""What every safetensors reader knows; other dtypes are stored as their bytes."""

AS_BYTES = frozenset({torch.complex32, torch.complex128, torch.float8_e8m0fnu, torch.float4_e2m1fn_x2})

_BY_NAME = {str(dtype).removeprefix("torch."): dtype for dtype in STORED | AS_BYTES}
_ANY = {str(value).removeprefix("torch."): value for value in vars(torch).values() if isinstance(value, torch.dtype)}
_NUMPY_STORED = {
    np.dtype(name): dtype
    for name, dtype in _BY_NAME.items()
    if name in {"bool", "float16", "float32", "float64", "complex64"} or name.removeprefix("u").startswith("int")
}
_DESCRIPTION = re.compile(r"[<>|=]?[?bBhHiIlLqQefdgFDGSUVmMc]\d*(\[\d*[a-zA-Zμ]+(/\d+)?\])?|[<>|=]?[biufcmMSUV]\d+")

NumpyDType = np.dtype[np.generic]


def dtype_name(dtype: torch.dtype) -> str:
    """Return ``float32`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def tensor_dtype(name: str) -> torch.dtype:
    """Return the dtype of a stored tensor by its name."""
    dtype = _BY_NAME.get(name)
    if dtype is None:
        msg = f"the state document names a tensor of dtype {name!r}, which has no stored form"
        raise StateCorruptError(msg)
    return dtype


def any_dtype(name: str) -> torch.dtype:
    """Return the dtype of this name, as a value."""
    dtype = _ANY.get(name)
    if dtype is None:
        msg = f"the state document holds torch dtype {name!r}, which this torch {torch.__version__} does not have"
        raise StateCorruptError(msg)
    return dtype


def torch_of_numpy(dtype: NumpyDType) -> torch.dtype | None:
    """Return the stored torch dtype with the same bytes, if there is one."""
    return _NUMPY_STORED.get(dtype)


def describe_numpy(dtype: NumpyDType) -> Any:
    """Describe a NumPy dtype as an ``.npy`` file does.

    Raises:
        UnsupportedStateError: it holds Python objects, or the description would lose something.
    """
    description: Any = None
    if not dtype.hasobject and dtype.metadata is None:
        description = np.lib.format.dtype_to_descr(dtype)
    if description is None or np.lib.format.descr_to_dtype(description) != dtype:
        msg = f"NumPy dtype {dtype} has no stored form; convert the array to numbers, text of fixed width, or a list"
        raise UnsupportedStateError(msg)
    return description


def numpy_dtype(description: Any) -> NumpyDType:
    """Return the dtype of a description; never one that holds objects.

    Raises:
        StateCorruptError: it is not a description of plain data.
    """
    try:
        dtype = np.lib.format.descr_to_dtype(_as_tuples(description))
    except (TypeError, ValueError, KeyError, IndexError, AttributeError, SyntaxError) as error:
        msg = f"the state document holds a NumPy dtype {description!r} that cannot be read: {error}"
        raise StateCorruptError(msg) from error
    if dtype.hasobject:
        msg = f"the state document holds a NumPy dtype of Python objects, {description!r}, which bitproof never writes"
        raise StateCorruptError(msg)
    return dtype


def _as_tuples(description: Any) -> Any:
    """Turn JSON's lists into the tuples that NumPy expects, and refuse text that is not a plain type."""
    if isinstance(description, str):
        if not _DESCRIPTION.fullmatch(description):
            msg = "not a plain type"
            raise ValueError(msg)
        return description
    if not isinstance(description, list):
        msg = "neither text nor a list"
        raise TypeError(msg)
    if len(description) == 2 and isinstance(description[1], list) and all(type(n) is int for n in description[1]):
        return (_as_tuples(description[0]), tuple(description[1]))  # a subarray
    fields: list[Any] = []
    for field in description:
        name, kind, *shape = field
        if not isinstance(name, str):
            msg = "a field without a name"
            raise TypeError(msg)
        fields.append((name, _as_tuples(kind), *(tuple(s) for s in shape)))
    return fields
