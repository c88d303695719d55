"""Two environments, key by key, the likeliest to change bits first."""

from collections.abc import Mapping
from typing import Any

import msgspec

LIKELIEST = (
    "torch.threads",
    "torch.cpu_capability",
    "env.ATEN_CPU_CAPABILITY",
    "torch.version",
    "torch.devices",
    "torch.deterministic",
    "env.PYTHONHASHSEED",
    "package.torch",
    "package.numpy",
    "package.transformers",
    "package.accelerate",
    "package.lightning",
    "package.pytorch-lightning",
    "package.torchdata",
    "package.datasets",
    "package.torchvision",
    "package.torchaudio",
    "package.triton",
    "torch.",
    "env.",
    "gpu.",
    "cpu.",
    "numpy.",
    "git.",
    "python.",
    "multiprocessing.",
    "os",
    "os.",
    "package.",
)
"""Keys, or beginnings of keys that end in a dot, ordered by how likely a difference is to change bits."""
_COME_ALONG = frozenset(
    {"torch.git", "torch.build", "torch.compiler", "torch.blas", "torch.lapack", "torch.mkl_version"}
    | {"torch.onednn_version", "torch.cuda", "torch.cudnn", "torch.nccl"}
)
"""What another build of PyTorch brings with it, and so says nothing beside ``torch.version``."""
_PACKAGE = "package."
ONE_SIDED = "packages.only"
"""The key of the packages that only one of two environments has: most are of no use to the script."""


class Difference(msgspec.Struct, frozen=True):
    """One key in which two environments differ."""

    key: str
    reference: Any
    other: Any


def compare(reference: Mapping[str, Any], other: Mapping[str, Any]) -> list[Difference]:
    """List the keys that differ, the likeliest to change bits first.

    Packages that only one of the two has are one difference, ``packages.only``, with their names on either side.
    """
    keys = {key for key in {**reference, **other} if reference.get(key) != other.get(key)}
    if "torch.version" in keys:
        keys -= _COME_ALONG
    lone = {key for key in keys if key.startswith(_PACKAGE) and None in (reference.get(key), other.get(key))}
    found = [Difference(key, reference.get(key), other.get(key)) for key in sorted(keys - lone, key=_likelihood)]
    if lone:
        found.append(Difference(ONE_SIDED, *(_names(lone, side) for side in (reference, other))))
    return found


def _names(keys: set[str], side: Mapping[str, Any]) -> list[str]:
    return sorted(key.removeprefix(_PACKAGE) for key in keys if side.get(key) is not None)


def _likelihood(key: str) -> tuple[int, str]:
    for rank, beginning in enumerate(LIKELIEST):
        if key == beginning or (beginning.endswith(".") and key.startswith(beginning)):
            return rank, key
    return len(LIKELIEST), key
