"""Record, diff and prove bit-exact resume of PyTorch training runs."""

from bitproof.__about__ import __version__

__all__ = ["__version__"]
