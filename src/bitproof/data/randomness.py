"""Randomness of one sample: the process's generators, set from (purpose, seed, epoch, index)."""

import ctypes
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any, Final

import numpy as np
import torch

from bitproof.data.errors import SampleRandomError
from bitproof.data.keys import derive
from bitproof.data.numpy_generator import WORDS, GlobalNumpyGenerator
from bitproof.data.order import UInt64s
from bitproof.data.python_generator import GlobalPythonGenerator
from bitproof.data.seeds import SampleKey

_STATE_BYTES: Final = 4 * WORDS  # of python's generator, and of NumPy's: both are Mersenne Twisters
_SOURCE_BYTES: Final = 40  # of SFC64's state: three words, a counter, and half an output that is kept
_WARM_UP: Final = 12  # outputs that SFC64's own seeding throws away

_source = threading.local()  # one SFC64 a thread, since making it takes longer than setting all generators of a sample


class SampleGenerators:
    """Sets python's, NumPy's and torch's generators for the samples of a batch; `set(k)` for sample *k*.

    The states of python's and NumPy's Mersenne Twisters are 624 outputs of SFC64 (Doty-Humphrey, PractRand, 2010; its
    three words of state are the seed, as in NumPy). Filling them from a fast generator takes a fifth of what seeding them
    does. PyTorch's CPU generator is seeded as usual, and uses the lower 32 bits of its seed.

    Args:
        seeds: uint64[samples, 4], see `seeds_of`.

    """

    def __init__(self, seeds: UInt64s) -> None:
        self._for_torch: list[int] = seeds[:, 0].tolist()
        self._python, self._numpy = GlobalPythonGenerator(), GlobalNumpyGenerator()
        if not hasattr(_source, "generator"):
            _source.generator = np.random.SFC64(0)
            _source.state = _state_of(_source.generator)
        self._source, self._source_state = _source.generator, _source.state
        states = np.zeros((len(seeds), _SOURCE_BYTES // 8), dtype=np.uint64)
        states[:, :3], states[:, 3] = seeds[:, 1:], 1
        self._source_states = states.reshape(-1).data.cast("B")

    def set(self, k: int) -> None:
        """Set the three generators for sample `k` of the batch."""
        torch.default_generator.manual_seed(self._for_torch[k])
        self._source_state[:] = self._source_states[_SOURCE_BYTES * k : _SOURCE_BYTES * (k + 1)]
        words = self._source.random_raw(_WARM_UP + WORDS).data.cast("B")[8 * _WARM_UP :]
        self._python.write(words[:_STATE_BYTES])
        self._numpy.write(words[_STATE_BYTES:])


def _state_of(generator: np.random.SFC64) -> memoryview:
    """Return the memory of an SFC64 generator's state, uint8[40]."""
    _check_source()
    state = (ctypes.c_char * _SOURCE_BYTES).from_address(int(generator.ctypes.state_address))
    return memoryview(state).cast("B")


@cache
def _check_source() -> None:
    """Check on a generator of our own that memory is laid out as expected."""
    probe = np.random.SFC64(0)
    memory = np.frombuffer(ctypes.string_at(int(probe.ctypes.state_address), _SOURCE_BYTES), dtype=np.uint64).tolist()
    state: Any = probe.state
    if sys.byteorder != "little" or memory != [*state["state"]["state"].tolist(), 0]:
        raise SampleRandomError(
            f"NumPy {np.__version__}: expected the state of SFC64 in memory as four words (little-endian), found another "
            "layout. Pass sample_randomness=False to the Loader, and report this version of NumPy."
        )


class GeneratorStates:
    """The states of python's, NumPy's and torch's (CPU) global generators, as they were when this was made."""

    def __init__(self) -> None:
        self._python, self._numpy = GlobalPythonGenerator(), GlobalNumpyGenerator()
        self._saved = self._python.save(), self._numpy.save(), torch.default_generator.get_state()

    def put_back(self) -> None:
        """Set the generators to these states."""
        in_python, in_numpy, in_torch = self._saved
        self._python.restore(in_python)
        self._numpy.restore(in_numpy)
        torch.default_generator.set_state(in_torch)


@contextmanager
def generators_put_back() -> Iterator[None]:
    """Put python's, NumPy's and torch's (CPU) global generators back as they were, also after an exception."""
    before = GeneratorStates()
    try:
        yield
    finally:
        before.put_back()


class OwnGenerators:
    """Generators of something that runs in turns with others: set for it while it runs, put back afterwards.

    Args:
        seeds: uint64[1, 4], what they start from.

    """

    def __init__(self, seeds: UInt64s) -> None:
        self._seeds = seeds
        self._states: GeneratorStates | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Go on with these generators in the block."""
        with generators_put_back():
            if self._states is None:
                SampleGenerators(self._seeds).set(0)
            else:
                self._states.put_back()
            yield
            self._states = GeneratorStates()


class CurrentSample:
    """The sample being read, and the streams that it was asked for.

    Args:
        seed: of the run.

    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._key: SampleKey = ()
        self._streams: dict[str, np.random.Generator] = {}

    def move(self, key: SampleKey) -> None:
        """Go on to the next sample."""
        self._key = key
        if self._streams:
            self._streams = {}

    def stream(self, name: str) -> np.random.Generator:
        """Return the sample's stream of that name, the same object each time."""
        if name not in self._streams:
            key = int.from_bytes(derive("sample_rng", name, self._seed, *self._key, size=16), "little")
            self._streams[name] = np.random.Generator(np.random.Philox(key=key))
        return self._streams[name]


current_sample: ContextVar[CurrentSample | None] = ContextVar("current_sample", default=None)


def sample_rng(name: str = "") -> np.random.Generator:
    """Return a NumPy generator of the sample that is being read, for use inside ``dataset[index]``.

    It is a Philox counter-based generator (Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy as
    1, 2, 3", 2011), its key of 128 bits hashed from (name, seed, epoch, index). Each name is a stream of its own,
    so that a new transform does not shift the draws of the others. Within a sample the same name continues one
    stream.

    Raises:
        SampleRandomError: no `Loader` is reading a sample here.

    """
    sample = current_sample.get()
    if sample is None:
        raise SampleRandomError(
            "sample_rng() was called outside of dataset[index]: expected a bitproof Loader reading a sample, found "
            "none. Call it inside the data set's __getitem__, read through bitproof.data.Loader with "
            "sample_randomness=True; elsewhere, make a generator with numpy.random.default_rng(seed)."
        )
    return sample.stream(name)
