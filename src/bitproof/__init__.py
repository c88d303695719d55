"""Record, diff and prove bit-exact resume of PyTorch training runs."""

from typing import TYPE_CHECKING, Any

from bitproof.__about__ import __version__
from bitproof.errors import BitproofError

if TYPE_CHECKING:
    from bitproof.trail.attach import recording

__all__ = ["BitproofError", "__version__", "recording"]


def __getattr__(name: str) -> Any:
    """Import what needs torch only when it is asked for."""
    if name == "recording":
        from bitproof.trail.attach import recording  # noqa: PLC0415

        return recording
    msg = f"module 'bitproof' has no attribute {name!r}"
    raise AttributeError(msg)
