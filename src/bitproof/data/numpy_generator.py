"""NumPy's global generator, written and put back at the speed of a copy."""

import ctypes
import sys
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.random.mtrand import _rand as global_generator
from numpy.random.mtrand import get_bit_generator

from bitproof.data.errors import SampleRandomError
from bitproof.data.order import UInt64s, splitmix

WORDS: Final = 624  # words of 32 bits in a Mersenne Twister's state
BYTES: Final = 4 * WORDS + 4  # NumPy's mt19937_state: the words, then the position in them as a C int
# The instance behind the functions of numpy.random is used, not these: a recorder notes their calls as the user's.
_USED_UP: Final = WORDS  # the position at which the next draw makes the next 624 words
_GAMMAS: Final = np.arange(1, WORDS // 2 + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)


class GlobalNumpyGenerator:
    """Sets numpy.random's global Mersenne Twister to given states.

    `np.random.seed` takes 32 bits, of which two among 65,000 samples probably agree, or an array, which takes longer
    than all other seeding of a sample together. NumPy publishes the address of a bit generator's state
    (``BitGenerator.ctypes.state_address``), so a state of 2,500 bytes is copied there. The one thing not kept there,
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
        self.address = int(generator.ctypes.state_address)
        self._head = ctypes.c_uint32.from_address(self.address)
        self._position = ctypes.c_int.from_address(self.address + 4 * WORDS)
        self._written = -1

    def write(self, source: int) -> None:
        """Copy the state at address `source`, as made by `states`, into the generator."""
        if self._position.value != _USED_UP or self._head.value != self._written:
            global_generator.seed(0)  # something was drawn: drop the cached normal draw
        ctypes.memmove(self.address, source, BYTES)
        self._written = self._head.value


class PutBack:
    """Remembers the global generator's state, and puts it back.

    Reading and setting it through NumPy takes 130 µs, so that is done only where the state is not the one that was put
    back last: most training loops never draw from it.
    """

    def __init__(self) -> None:
        self._memory = b""
        self._state: Any = None

    def save(self, generator: GlobalNumpyGenerator) -> None:
        """Remember the state as it is now."""
        memory = ctypes.string_at(generator.address, BYTES)
        # A cached normal draw is used up without a trace in the memory: then the state must be read.
        if memory != self._memory or self._state["has_gauss"]:
            self._memory, self._state = memory, global_generator.get_state(legacy=False)

    def restore(self, generator: GlobalNumpyGenerator) -> None:
        """Put back the state of the last `save`."""
        if self._state["has_gauss"]:
            global_generator.set_state(self._state)
            return
        global_generator.seed(0)  # drops a cached normal draw
        ctypes.memmove(generator.address, self._memory, BYTES)


def empty_states(count: int) -> np.ndarray[tuple[int, int], np.dtype[np.uint32]]:
    """Return room for `count` states, uint32[count, 625]."""
    states = np.empty((count, WORDS + 1), dtype=np.uint32)
    states[:, WORDS] = _USED_UP
    return states


def fill_states(states: np.ndarray[tuple[int, int], np.dtype[np.uint32]], seeds: UInt64s) -> None:
    """Write one state a seed (uint64[k]) into the first k rows of `states`: the splitmix64 stream of the seed.

    Splitmix64: Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", 2014. All seeds' words are
    computed at once.
    """
    words = seeds[:, None] + _GAMMAS
    splitmix(words, np.empty_like(words))
    states[: len(seeds), :WORDS] = words.view(np.uint32)


@cache
def _check_layout() -> None:
    """Check on a generator of our own that memory is laid out as expected."""
    probe = np.random.MT19937(0)
    memory = np.frombuffer(ctypes.string_at(int(probe.ctypes.state_address), BYTES), dtype=np.uint32)
    state: Any = probe.state["state"]
    if sys.byteorder != "little" or memory[:WORDS].tolist() != state["key"].tolist() or memory[WORDS] != state["pos"]:
        raise SampleRandomError(
            f"NumPy {np.__version__}: expected the state of MT19937 in memory as 624 words and a position "
            "(little-endian), found another layout. Pass sample_randomness=False to the Loader, and report this "
            "version of NumPy."
        )
