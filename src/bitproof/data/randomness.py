"""Randomness of one sample: the process's generators, set from (purpose, seed, epoch, index)."""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

import numpy as np
import torch

from bitproof.data import numpy_generator
from bitproof.data.errors import SampleRandomError
from bitproof.data.keys import derive
from bitproof.data.numpy_generator import GlobalNumpyGenerator, PutBack

if TYPE_CHECKING:
    from bitproof.data.order import UInt64s

SEED_BYTES: Final = 24  # 8 for each of python, torch and NumPy
_CHUNK: Final = 16  # samples whose NumPy states are computed at once: 40 KiB a temporary

# The instance behind the module's functions, since a recorder notes calls of those as the user's. Its C method also skips
# the checks of types that `random.seed` makes on each call (1 µs of 5).
_python: Final[random.Random] = random._inst  # noqa: SLF001
_seed_python: Final = super(random.Random, _python).seed
_numpy_put_back: Final = PutBack()


class SampleSeeds:
    """The seeds of a batch of samples; `apply(k)` sets python's, NumPy's and torch's generators for sample *k*.

    Python's and NumPy's global generators get 64 bits of seed. PyTorch's CPU generator uses the lower 32 bits of
    whatever seed it is given.

    Args:
        keys: a hash of 24 bytes (`SEED_BYTES`) a sample.

    """

    def __init__(self, keys: Sequence[bytes]) -> None:
        seeds = np.frombuffer(b"".join(keys), dtype="<u8").reshape(-1, 3).astype(np.uint64)
        self._for_python: list[int] = seeds[:, 0].tolist()
        self._for_torch: list[int] = seeds[:, 1].tolist()
        self._for_numpy: UInt64s = seeds[:, 2]
        self._numpy = GlobalNumpyGenerator()
        self._states = numpy_generator.empty_states(min(_CHUNK, len(keys)))
        self._at = int(self._states.ctypes.data)
        self._chunk = -1

    def apply(self, k: int) -> None:
        """Set the three generators for sample `k` of the batch."""
        _seed_python(self._for_python[k])
        _python.gauss_next = None  # type: ignore[attr-defined]
        torch.default_generator.manual_seed(self._for_torch[k])
        chunk, row = divmod(k, _CHUNK)
        if chunk != self._chunk:
            numpy_generator.fill_states(self._states, self._for_numpy[chunk * _CHUNK : (chunk + 1) * _CHUNK])
            self._chunk = chunk
        self._numpy.write(self._at + row * numpy_generator.BYTES)


@contextmanager
def generators_put_back() -> Iterator[None]:
    """Put python's, NumPy's and torch's (CPU) global generators back as they were, also after an exception."""
    in_python, in_torch = _python.getstate(), torch.default_generator.get_state()
    in_numpy = GlobalNumpyGenerator()
    _numpy_put_back.save(in_numpy)
    try:
        yield
    finally:
        _python.setstate(in_python)
        torch.default_generator.set_state(in_torch)
        _numpy_put_back.restore(in_numpy)


class CurrentSample:
    """The sample being read, and the streams that it was asked for."""

    def __init__(self, seed: int, epoch: int, index: int) -> None:
        self._parts = (seed, epoch, index)
        self._streams: dict[str, np.random.Generator] = {}

    def stream(self, name: str) -> np.random.Generator:
        """Return the sample's stream of that name, the same object each time."""
        if name not in self._streams:
            key = int.from_bytes(derive("sample_rng", name, *self._parts, size=16), "little")
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
