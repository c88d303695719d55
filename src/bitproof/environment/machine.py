"""The machine: processor, C library, GPU driver."""

import functools
import os
import platform
import re
from pathlib import Path

_NVIDIA = Path("/proc/driver/nvidia")
"""Where the driver tells of itself; reading it starts nothing."""


def libc() -> str | None:
    """Return the C library and its version: its exp and log are not another's."""
    name = "CS_GNU_LIBC_VERSION"
    return os.confstr(name) if name in getattr(os, "confstr_names", {}) else None


def available_cpus() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@functools.cache
def cpu_model() -> str:
    """Return the processor's name, family, model and stepping."""
    fields: dict[str, str] = {}
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                name, colon, value = line.partition(":")
                if not colon:
                    break  # the next processor
                fields[name.strip()] = value.strip()
    except OSError:
        return platform.processor()
    wanted = ("model name", "cpu family", "model", "stepping")
    return " ".join(fields[key] for key in wanted if key in fields) or platform.processor()


@functools.cache
def gpu_driver() -> str | None:
    """Return the version of NVIDIA's driver, without starting it."""
    try:
        told = (_NVIDIA / "version").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    version = re.search(r"\b\d+\.\d+(?:\.\d+)?\b", told)
    return version[0] if version else None


@functools.cache
def gpus() -> tuple[str, ...]:
    """Return the models of the machine's NVIDIA GPUs, also of those that this process may not use."""
    told = [path.read_text(encoding="utf-8", errors="replace") for path in sorted(_NVIDIA.glob("gpus/*/information"))]
    return tuple(model[1] for text in told if (model := re.search(r"^Model:\s*(.*\S)", text, re.MULTILINE)))
