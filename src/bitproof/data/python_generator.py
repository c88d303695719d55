"""Python's global generator, written and put back at the speed of a copy."""

import ctypes
import random
import sys
from functools import cache
from typing import Any, Final

from bitproof.data.errors import SampleRandomError

WORDS: Final = 624  # words of 32 bits in a Mersenne Twister's state
_USED_UP: Final = WORDS  # the position at which the next draw makes the next 624 words

# The instance behind the functions of `random`, since a recorder notes calls of those as the user's.
_generator: Final[random.Random] = random._inst  # noqa: SLF001


class GlobalPythonGenerator:
    """Sets and puts back the Mersenne Twister behind python's `random`.

    `random.seed` takes longer than all other seeding of a sample together, and `getstate` and `setstate` go through 624
    Python integers. CPython keeps the state as a C int, the position, and 624 words behind the object's header. That is
    checked once, on a generator of our own, and refused where it is otherwise.
    """

    def __init__(self) -> None:
        _check_layout()
        self._position, self._words = _memory_of(_generator)

    def write(self, words: memoryview) -> None:
        """Set the state to 624 words, 2,496 bytes, as if all of them were drawn; drop the cached normal draw."""
        self._words[:] = words
        self._position.value = _USED_UP
        _generator.gauss_next = None  # type: ignore[attr-defined]

    def save(self) -> tuple[bytes, int, Any]:
        """Return the state as it is now."""
        return bytes(self._words), self._position.value, _generator.gauss_next  # type: ignore[attr-defined]

    def restore(self, saved: tuple[bytes, int, Any]) -> None:
        """Put back what `save` returned."""
        self._words[:], self._position.value, _generator.gauss_next = saved  # type: ignore[attr-defined]


def _memory_of(generator: random.Random) -> tuple[ctypes.c_int, memoryview]:
    """Return the position and the words (uint8[2496]) of a generator, as they are in memory."""
    start = id(generator) + object.__basicsize__
    words = (ctypes.c_char * (4 * WORDS)).from_address(start + ctypes.sizeof(ctypes.c_int))
    return ctypes.c_int.from_address(start), memoryview(words).cast("B")


@cache
def _check_layout() -> None:
    """Check on a generator of our own that memory is laid out as expected."""
    found = None
    if sys.implementation.name == "cpython" and sys.byteorder == "little":
        probe = random.Random(0)
        probe.random()
        position, words = _memory_of(probe)
        found = (*words.cast("I"), position.value)
    if found is None or found != probe.getstate()[1]:
        raise SampleRandomError(
            f"Python {sys.version.split()[0]}: expected the state of `random` in memory as a position and 624 words "
            "(CPython, little-endian), found another layout. Pass sample_randomness=False to the Loader, and report this "
            "version of Python."
        )
