"""The dtypes that a store keeps, by the names that are stored."""

import torch

# PyTorch's name, and safetensors' (None where that format has none: the bytes are then kept as unsigned bytes).
_TABLE: dict[str, str | None] = {
    "bool": "BOOL",
    "uint8": "U8",
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
    "int8": "I8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e4m3fnuz": None,
    "float8_e5m2": "F8_E5M2",
    "float8_e5m2fnuz": None,
    "float8_e8m0fnu": "F8_E8M0",
    "float4_e2m1fn_x2": None,
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "complex32": None,
    "complex64": "C64",
    "complex128": None,
}

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in _TABLE}
NAMES: dict[torch.dtype, str] = {dtype: name for name, dtype in DTYPES.items()}
ITEM_SIZES: dict[str, int] = {name: dtype.itemsize for name, dtype in DTYPES.items()}


def safetensors_view(dtype: str, shape: tuple[int, ...]) -> tuple[str, list[int]]:
    """Return the dtype and the shape under which safetensors' readers see a tensor."""
    known = _TABLE[dtype]
    return (known, list(shape)) if known else ("U8", [*shape, ITEM_SIZES[dtype]])
