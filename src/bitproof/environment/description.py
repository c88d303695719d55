"""Describe a process's environment: versions, builds, flags, threads, hardware, code, packages."""

import locale
import os
import platform
import re
import sys
from typing import Any

from bitproof.environment import frameworks, git, machine, packages

_VARIABLES = (
    "PYTHONHASHSEED",
    "ATEN_CPU_CAPABILITY",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_LAUNCH_BLOCKING",
    "NVIDIA_TF32_OVERRIDE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TORCH_COMPILE_DISABLE",
    "PYTORCH_NVML_BASED_CUDA_CHECK",
    "NPY_DISABLE_CPU_FEATURES",
    "GLIBC_TUNABLES",
    "LD_PRELOAD",
    "WORLD_SIZE",
)
_FAMILIES = re.compile(
    r"(OMP|GOMP|KMP|MKL|OPENBLAS|BLIS|DNNL|ONEDNN|CUBLAS|CUBLASLT|CUDNN|NCCL|TORCH_NCCL|TORCHINDUCTOR|TRITON)_\w+"
)
_NO_SETTING = re.compile(r"\w+_(DIR|ID|FILE|DEBUG\w*|VERBOSE)")
"""Variables of those families that name a place or a process, or that only print: they change from run to run."""
_LEFT_OUT = frozenset({"bitproof", "pip", "torch"})
"""Packages that need no key: two change nothing, the other has more exact ones."""


def describe() -> dict[str, Any]:
    """Describe this process's environment; what concerns torch is there once torch is imported.

    The code's state in git and the installed packages are looked up once a process.

    Returns:
        Flat keys such as ``torch.threads``; values that JSON can hold. A key that is missing counts as None.
    """
    found: dict[str, Any] = {
        "python.version": platform.python_version(),
        "python.implementation": platform.python_implementation(),
        "python.hash_randomization": bool(sys.flags.hash_randomization),
        "python.optimize": sys.flags.optimize,
        "os": f"{platform.system()} {platform.machine()}",
        "os.libc": machine.libc(),
        "cpu.model": machine.cpu_model(),
        "cpu.count": machine.available_cpus(),
        "gpu.driver": machine.gpu_driver(),
        "gpu.models": list(machine.gpus()),
        "locale.encoding": locale.getencoding(),
    }
    found |= {f"env.{name}": os.environ.get(name) for name in _VARIABLES}
    found |= {
        f"env.{name}": os.environ[name]
        for name in sorted(os.environ)
        if _FAMILIES.fullmatch(name) and not _NO_SETTING.fullmatch(name)
    }
    found |= {f"package.{name}": version for name, version in packages.installed().items() if name not in _LEFT_OUT}
    found |= git.state(git.script_folder())
    if "numpy" in sys.modules:
        found |= frameworks.describe_numpy()
    if "torch" in sys.modules:
        found |= frameworks.describe_torch()
    elif "torch" in packages.installed():
        found["package.torch"] = packages.installed()["torch"]
    return found
