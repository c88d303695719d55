"""What can change bits besides the data, and how two environments differ."""

from bitproof.environment.description import describe
from bitproof.environment.difference import LIKELIEST, Difference, compare

__all__ = ["LIKELIEST", "Difference", "compare", "describe"]
