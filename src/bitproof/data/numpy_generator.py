"""NumPy's global generator, written and put back at the speed of a copy."""

import ctypes
import sys
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.random.mtrand import _rand as global_generator
from numpy.random.mtrand import get_bit_generator

from bitproof.data.errors import SampleRandomError

WORDS: Final = 624  # words of 32 bits in a Mersenne Twister's state
_BYTES: Final = 4 * WORDS
# The instance behind the functions of numpy.random is used, not these: a recorder notes their calls as the user's.
_USED_UP: Final = WORDS  # the position at which the next draw makes the next 624 words

Saved = tuple[bytes, int, Any]
"""The words, the position in them, and NumPy's own state where a normal draw was cached."""


class GlobalNumpyGenerator:
    """Sets and puts back numpy.random's global Mersenne Twister.

    `np.random.seed` takes 32 bits, of which two among 65,000 samples probably agree, or an array, which takes longer
    than all other seeding of a sample together. NumPy publishes the address of a bit generator's state
    (``BitGenerator.ctypes.state_address``), so the words and the position are copied there. The one thing not kept there,
    the second normal draw of a pair, is dropped by `np.random.seed`, where anything was drawn at all.
    """

    def __init__(self) -> None:
        _check_layout()
        generator = get_bit_generator()
        if not isinstance(generator, np.random.MT19937):
            raise SampleRandomError(
                f"NumPy's global generator: expected the standard MT19937, found {type(generator).__name__} "
                "(numpy.random.set_bit_generator was called). Per-sample randomness cannot set it: put the standard "
                "one back, or pass sample_randomness=False to the Loader, which then sets no generator at all."
            )
        self._generator = generator  # its memory lives as long as it does
        self._position, self._words = _memory_of(generator)
        self._head = self._words.cast("I")
        self._written = -1

    def write(self, words: memoryview) -> None:
        """Set the state to 624 words, 2,496 bytes, as if all of them were drawn."""
        self._drop_cached_draw()
        self._words[:] = words
        self._position.value = _USED_UP
        self._written = self._head[0]

    def save(self) -> Saved:
        """Return the state as it is now.

        Reading it through NumPy takes 130 µs, so that is done only where it is not the state that was put back last: most
        training loops never draw from it.
        """
        words, position = bytes(self._words), self._position.value
        if (words, position) == _last_put_back.value:
            return words, position, None
        # A cached normal draw leaves no trace in the memory.
        state = global_generator.get_state(legacy=False)
        return words, position, state if state["has_gauss"] else None

    def restore(self, saved: Saved) -> None:
        """Put back what `save` returned."""
        words, position, state = saved
        if state is not None:
            global_generator.set_state(state)
            _last_put_back.value = None
            return
        self._drop_cached_draw()
        self._words[:], self._position.value = words, position
        _last_put_back.value = words, position

    def _drop_cached_draw(self) -> None:
        if self._position.value != _USED_UP or self._head[0] != self._written:
            global_generator.seed(0)  # something was drawn


class _LastPutBack:
    """Words and position that were put back last, without a cached normal draw."""

    value: tuple[bytes, int] | None = None


_last_put_back: Final = _LastPutBack()


def _memory_of(generator: Any) -> tuple[ctypes.c_int, memoryview]:
    """Return the position and the words (uint8[2496]) of a generator, as they are in memory."""
    start = int(generator.ctypes.state_address)
    words = (ctypes.c_char * _BYTES).from_address(start)
    return ctypes.c_int.from_address(start + _BYTES), memoryview(words).cast("B")


@cache
def _check_layout() -> None:
    """Check on a generator of our own that memory is laid out as expected."""
    probe = np.random.MT19937(0)
    probe.random_raw()
    position, words = _memory_of(probe)
    state: Any = probe.state["state"]
    if sys.byteorder != "little" or [*words.cast("I"), position.value] != [*state["key"].tolist(), state["pos"]]:
        raise SampleRandomError(
            f"NumPy {np.__version__}: expected the state of MT19937 in memory as 624 words and a position "
            "(little-endian), found another layout. Pass sample_randomness=False to the Loader, and report this "
            "version of NumPy."
        )
