"""How PyTorch and NumPy were built, what they run on, and how they are set."""

import functools
import re
from typing import Any

from xxhash import xxh3_64_hexdigest


def describe_torch() -> dict[str, Any]:
    """Describe the PyTorch of this process, its devices, threads and settings."""
    import multiprocessing  # noqa: PLC0415  # the describe() of a process without torch stays light

    import torch  # noqa: PLC0415

    cuda, cudnn, onednn = torch.backends.cuda, torch.backends.cudnn, torch.backends.mkldnn
    return {
        "torch.version": str(torch.__version__),
        "torch.git": torch.version.git_version,
        **_build(),
        "torch.cuda": torch.version.cuda,
        "torch.cudnn": cudnn.version() if cudnn.is_available() else None,
        "torch.nccl": _nccl(),
        "torch.devices": _devices(),
        "torch.threads": torch.get_num_threads(),
        "torch.interop_threads": torch.get_num_interop_threads(),
        "torch.mkl_threads": _mkl_threads(),
        "torch.cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "torch.mkl": torch.backends.mkl.is_available(),
        "torch.mkldnn": onednn.is_available() and onednn.enabled,
        "torch.mkldnn_deterministic": onednn.deterministic,
        "torch.default_dtype": str(torch.get_default_dtype()),
        "torch.deterministic": torch.are_deterministic_algorithms_enabled(),
        "torch.deterministic_warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "torch.fill_uninitialized_memory": bool(getattr(torch.utils.deterministic, "fill_uninitialized_memory")),  # noqa: B009  # set on the module at run time
        "torch.matmul_precision": _matmul_precision(),
        "torch.fp32_precision": torch.backends.fp32_precision,  # type: ignore[attr-defined]
        "torch.fp32_precision.cuda.matmul": cuda.matmul.fp32_precision,
        "torch.fp32_precision.cudnn.conv": cudnn.conv.fp32_precision,  # type: ignore[attr-defined]
        "torch.fp32_precision.mkldnn.matmul": onednn.matmul.fp32_precision,  # type: ignore[attr-defined]
        "torch.fp16_reduced_precision": cuda.matmul.allow_fp16_reduced_precision_reduction,
        "torch.bf16_reduced_precision": cuda.matmul.allow_bf16_reduced_precision_reduction,
        "torch.cudnn_enabled": cudnn.enabled,
        "torch.cudnn_deterministic": cudnn.deterministic,
        "torch.cudnn_benchmark": cudnn.benchmark,
        "torch.sdp": [
            cuda.flash_sdp_enabled(),
            cuda.mem_efficient_sdp_enabled(),
            cuda.math_sdp_enabled(),
            cuda.cudnn_sdp_enabled(),
        ],
        "multiprocessing.start_method": multiprocessing.get_start_method(allow_none=True)
        or multiprocessing.get_all_start_methods()[0],
    }


@functools.cache
def _build() -> dict[str, str | None]:
    """Read how torch was built; what names its version or this process's CPU capability is left to other keys."""
    import torch  # noqa: PLC0415

    text = torch.__config__.show()
    told = re.sub(r"(?m)^.*CPU capability usage.*$|\b(COMMIT_SHA|TORCH_VERSION)=[^,\n]*", "", text)

    def first(pattern: str) -> str | None:
        match = re.search(pattern, text)
        return match[1].strip() if match else None

    return {
        "torch.build": xxh3_64_hexdigest(told.encode()),
        "torch.compiler": first(r"- ((?:GCC|clang|Clang|MSVC)[^\n]*)"),
        "torch.blas": first(r"\bBLAS_INFO=([^,\n]*)"),
        "torch.lapack": first(r"\bLAPACK_INFO=([^,\n]*)"),
        "torch.mkl_version": first(r"Math Kernel Library Version ([^\n]*?)(?: for [^\n]*)?\n"),
        "torch.onednn_version": first(r"(?:MKL-DNN|oneDNN) (v[^\n]*)"),
    }


def _matmul_precision() -> str:
    import torch  # noqa: PLC0415

    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # PyTorch refuses to say once a script has set fp32_precision of one backend
        return "set by backend"


def _mkl_threads() -> int | None:
    """Return MKL's threads where they are not torch's own."""
    import torch  # noqa: PLC0415

    told = re.search(r"mkl_get_max_threads\(\) : (\d+)", torch.__config__.parallel_info())
    return int(told[1]) if told and int(told[1]) != torch.get_num_threads() else None


def _devices() -> list[str]:
    """Name the GPUs, if CUDA has started: looking must not start it."""
    import torch  # noqa: PLC0415

    count = torch.cuda.device_count() if torch.cuda.is_initialized() else 0
    return [torch.cuda.get_device_name(i) for i in range(count)]


def _nccl() -> str | None:
    import torch.distributed  # noqa: PLC0415

    if not (torch.distributed.is_available() and torch.distributed.is_nccl_available()):
        return None
    from torch.cuda import nccl  # noqa: PLC0415

    return ".".join(map(str, nccl.version()))


@functools.cache
def describe_numpy() -> dict[str, Any]:
    """Describe which BLAS NumPy was built with, and which instructions it found."""
    import numpy as np  # noqa: PLC0415

    told: Any = np.show_config(mode="dicts")
    blas = told.get("Build Dependencies", {}).get("blas", {})
    return {
        "numpy.blas": " ".join(str(blas[key]) for key in ("name", "version") if key in blas),
        "numpy.simd": told.get("SIMD Extensions", {}).get("found", []),
    }
