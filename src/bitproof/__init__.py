"""Record, diff and prove bit-exact resume of PyTorch training runs."""

import importlib
from typing import TYPE_CHECKING, Any

from bitproof.__about__ import __version__
from bitproof.errors import BitproofError

if TYPE_CHECKING:
    from bitproof.determinism import deterministic
    from bitproof.run import Every, Keep, Run
    from bitproof.trail.attach import recording

__all__ = ["BitproofError", "Every", "Keep", "Run", "__version__", "deterministic", "recording"]

_HOMES = {
    "Every": "bitproof.run",
    "Keep": "bitproof.run",
    "Run": "bitproof.run",
    "deterministic": "bitproof.determinism",
    "recording": "bitproof.trail.attach",
}


def __getattr__(name: str) -> Any:
    """Import what needs torch only when it is asked for."""
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    msg = f"module 'bitproof' has no attribute {name!r}"
    raise AttributeError(msg)
