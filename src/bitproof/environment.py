"""What can change bits besides the script: versions, builds, flags, threads, hardware."""

import importlib.metadata
import locale
import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

_VARIABLES = (
    "PYTHONHASHSEED",
    "ATEN_CPU_CAPABILITY",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "OPENBLAS_CORETYPE",
    "MKL_CBWR",
    "KMP_AFFINITY",
    "CUDA_VISIBLE_DEVICES",
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_LAUNCH_BLOCKING",
    "NVIDIA_TF32_OVERRIDE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "NCCL_ALGO",
    "NCCL_PROTO",
    "TORCHINDUCTOR_FREEZING",
    "PYTORCH_NVML_BASED_CUDA_CHECK",
    "TORCH_COMPILE_DISABLE",
    "WORLD_SIZE",
)
_PACKAGES = (
    "torch",
    "numpy",
    "transformers",
    "accelerate",
    "lightning",
    "pytorch-lightning",
    "torchdata",
    "datasets",
    "safetensors",
    "torchvision",
    "scikit-learn",
    "triton",
)
LIKELIEST = (
    "torch.threads",
    "torch.cpu_capability",
    "env.ATEN_CPU_CAPABILITY",
    "torch.version",
    "torch.devices",
    "torch.deterministic",
    "env.PYTHONHASHSEED",
    "package.",
    "torch.",
    "env.",
    "cpu.",
    "python.",
)
"""Keys, or beginnings of keys, ordered by how likely a difference is to change bits."""


class Difference(msgspec.Struct, frozen=True):
    """One key in which two environments differ."""

    key: str
    reference: Any
    other: Any


def describe() -> dict[str, Any]:
    """Describe this process's environment; what concerns torch is there once torch is imported.

    Returns:
        Flat keys such as ``torch.threads``; values that JSON can hold.
    """
    found: dict[str, Any] = {
        "python.version": platform.python_version(),
        "python.implementation": platform.python_implementation(),
        "python.hash_randomization": bool(sys.flags.hash_randomization),
        "python.optimize": sys.flags.optimize,
        "os": f"{platform.system()} {platform.machine()}",
        "cpu.model": _cpu_model(),
        "cpu.count": _available_cpus(),
        "locale.encoding": locale.getencoding(),
    }
    found |= {f"env.{name}": os.environ.get(name) for name in _VARIABLES}
    for name in _PACKAGES:
        version = _version(name)
        if version is not None:
            found[f"package.{name}"] = version
    if "torch" in sys.modules:
        found |= _describe_torch()
    return found


def compare(reference: Mapping[str, Any], other: Mapping[str, Any]) -> list[Difference]:
    """List the keys that differ, the likeliest to change bits first."""
    keys = [key for key in {**reference, **other} if reference.get(key) != other.get(key)]
    return [Difference(key, reference.get(key), other.get(key)) for key in sorted(keys, key=_likelihood)]


def _likelihood(key: str) -> tuple[int, str]:
    for rank, beginning in enumerate(LIKELIEST):
        if key == beginning or (beginning.endswith(".") and key.startswith(beginning)):
            return rank, key
    return len(LIKELIEST), key


def _describe_torch() -> dict[str, Any]:
    import multiprocessing  # noqa: PLC0415  # the describe() of a process without torch stays light

    import torch  # noqa: PLC0415

    devices = (
        [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    )
    return {
        "torch.version": str(torch.__version__),
        "torch.git": torch.version.git_version,
        "torch.cuda": torch.version.cuda,
        "torch.cudnn": torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None,
        "torch.devices": devices,
        "torch.threads": torch.get_num_threads(),
        "torch.interop_threads": torch.get_num_interop_threads(),
        "torch.cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "torch.mkl": torch.backends.mkl.is_available(),
        "torch.mkldnn": torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled,
        "torch.default_dtype": str(torch.get_default_dtype()),
        "torch.deterministic": torch.are_deterministic_algorithms_enabled(),
        "torch.deterministic_warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "torch.fill_uninitialized_memory": bool(getattr(torch.utils.deterministic, "fill_uninitialized_memory")),  # noqa: B009  # set on the module at run time
        "torch.matmul_precision": torch.get_float32_matmul_precision(),
        "torch.cudnn_deterministic": torch.backends.cudnn.deterministic,
        "torch.cudnn_benchmark": torch.backends.cudnn.benchmark,
        "torch.sdp": [
            torch.backends.cuda.flash_sdp_enabled(),
            torch.backends.cuda.mem_efficient_sdp_enabled(),
            torch.backends.cuda.math_sdp_enabled(),
        ],
        "multiprocessing.start_method": multiprocessing.get_start_method(allow_none=True)
        or multiprocessing.get_all_start_methods()[0],
    }


def _available_cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str:
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as lines:
            fields = dict(_field(line) for line in lines if ":" in line)
    except OSError:
        return platform.processor()
    return (
        " ".join(fields[key] for key in ("model name", "cpu family", "model", "stepping") if key in fields)
        or platform.processor()
    )


def _field(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return name.strip(), value.strip()
