"""Read the random number generators without drawing from them.

A 32-bit Mersenne Twister (Matsumoto and Nishimura, 1998) lies below all three host generators: Python's ``random``,
NumPy's legacy global one and torch's CPU generator. Their states are brought to one form here: 624 words and a
position, so that a shift by *n* draws can be found whatever the library.
"""

import ctypes
import random
import struct
import sys
from collections.abc import Callable

import numpy as np
import torch

from bitproof.fingerprint import digest_bytes, digest_tensor, view_bytes

WORDS = 624
_STATE_BYTES = 4 * WORDS


class PythonReader:
    """Reads ``random``'s global generator.

    ``random.getstate()`` builds 625 integers, so the state is first looked at in memory: CPython keeps the position
    and the 624 words behind the object's header. The place is checked against ``getstate()`` once; where it does not
    fit (another Python), ``getstate()`` is used each time.
    """

    name = "python"

    def __init__(self) -> None:
        # `random.random` is a bound method of the one global generator.
        self._generator: random.Random = getattr(random.random, "__self__")  # noqa: B009
        self._peek = self._find_state()
        self._seen: tuple[bytes, float | None] | None = None
        self._digest = 0

    def read(self) -> int:
        """Return the digest of the state."""
        if self._peek is None:
            return digest_bytes(self.state())
        seen = (self._peek.raw, self._generator.gauss_next)  # type: ignore[attr-defined]
        if seen != self._seen:
            self._seen = seen
            self._digest = digest_bytes(self.state())
        return self._digest

    def state(self) -> bytes:
        """Return the state: 624 words, the position, and the spare normal number."""
        _, words, spare = self._generator.getstate()
        return struct.pack(f"<{WORDS + 1}I", *words) + _pack_spare(spare)

    def _find_state(self) -> "ctypes.Array[ctypes.c_char] | None":
        if sys.implementation.name != "cpython" or type(self._generator) is not random.Random:
            return None
        header = object.__basicsize__
        peek = (ctypes.c_char * (4 + _STATE_BYTES)).from_address(id(self._generator) + header)
        words = self._generator.getstate()[1]
        expected = struct.pack(f"<{WORDS + 1}I", words[-1], *words[:-1])
        return peek if sys.getsizeof(self._generator) >= header + len(expected) and peek.raw == expected else None


class NumpyReader:
    """Reads NumPy's legacy global generator.

    ``numpy.random.get_state()`` takes 40 µs, so the 624 words and the position are first looked at through the
    documented address of the bit generator's state. That misses one change: a normal number kept over from a pair
    is used up without touching them. So the full state is read again whenever one was left over.
    """

    name = "numpy"

    def __init__(self) -> None:
        import numpy as np  # noqa: PLC0415  # only scripts that use NumPy pay for it

        self._get_state = np.random.get_state
        self._global = np.random.mtrand._rand  # noqa: SLF001
        self._find()

    def _find(self) -> None:
        self._generator = self._global._bit_generator  # noqa: SLF001
        self._peek: ctypes.Array[ctypes.c_char] | None = None
        if type(self._generator).__name__ == "MT19937":
            self._peek = (ctypes.c_char * (_STATE_BYTES + 4)).from_address(self._generator.ctypes.state_address)
        self._seen = b""
        self._spare = True
        self._digest = 0

    def read(self) -> int:
        """Return the digest of the state."""
        if self._global._bit_generator is not self._generator:  # noqa: SLF001
            self._find()  # the user has put another one in its place
        if self._peek is None or self._spare or self._peek.raw != self._seen:
            self._digest = digest_bytes(self.state())
            self._seen = self._peek.raw if self._peek is not None else b""
        return self._digest

    def state(self) -> bytes:
        """Return the state: 624 words, the position, and the spare normal number."""
        state = self._get_state(legacy=False)
        inner = state["state"]
        if "key" not in inner:  # the user has put another bit generator in its place
            self._spare = True
            return repr(sorted(inner.items())).encode()
        self._spare = bool(state["has_gauss"])
        words: bytes = inner["key"].astype("<u4").tobytes()
        return words + struct.pack("<I", inner["pos"]) + _pack_spare(state["gauss"] if self._spare else None)


class TorchReader:
    """Reads torch's global CPU generator.

    Its ``get_state()`` is the C++ struct of 5,056 bytes: seed (8), left (4), seeded (4), next (8), 624 words in 8
    bytes each, then the spare normal number.
    """

    name = "torch"

    def __init__(self) -> None:
        self._raw = torch.default_generator.get_state()

    def read(self) -> int:
        """Return the digest of the state."""
        self._raw = torch.default_generator.get_state()
        return digest_tensor(self._raw)

    def state(self) -> bytes:
        """Return the state that was read last: 624 words, the position, and the rest of the struct but for the seed."""
        return _torch_state(self._raw)


def torch_state() -> bytes:
    """Return the state of torch's global CPU generator now, as :meth:`TorchReader.state` gives it."""
    return _torch_state(torch.default_generator.get_state())


def _torch_state(state: torch.Tensor) -> bytes:
    raw = view_bytes(state).raw
    left = int.from_bytes(raw[8:12], "little", signed=True)
    words = np.frombuffer(raw, "<u4", 2 * WORDS, 24)[::2].tobytes()
    return words + struct.pack("<I", min(WORDS - left + 1, WORDS)) + raw[24 + 8 * WORDS :]


class DeviceReader:
    """Reads an accelerator's generator (Philox: a seed and an offset)."""

    def __init__(self, index: int) -> None:
        self.name = f"cuda:{index}"
        self._index = index

    def read(self) -> int:
        """Return the digest of the state."""
        return digest_bytes(self.state())

    def state(self) -> bytes:
        """Return the state as torch gives it."""
        return torch.cuda.get_rng_state(self._index).numpy().tobytes()


Reader = PythonReader | NumpyReader | TorchReader | DeviceReader


class Generators:
    """All generators of this process; NumPy's and the devices' from when they are first used."""

    def __init__(self, keep: Callable[[str, int, bytes], None]) -> None:
        self._keep = keep
        self._readers: list[Reader] = [TorchReader(), PythonReader()]
        self._kept: dict[str, int] = {}
        self._numpy = False
        self._devices = False

    def read(self) -> dict[str, int]:
        """Return the digest of each, handing a state that changed to ``keep``."""
        if not self._numpy and "numpy.random" in sys.modules:
            self._numpy = True
            self._readers.append(NumpyReader())
        if not self._devices and torch.cuda.is_initialized():
            self._devices = True
            self._readers += [DeviceReader(index) for index in range(torch.cuda.device_count())]
        digests = {}
        for reader in self._readers:
            digests[reader.name] = digest = reader.read()
            if self._kept.get(reader.name) != digest:
                self._kept[reader.name] = digest
                self._keep(reader.name, digest, reader.state())
        return digests


def _pack_spare(spare: float | None) -> bytes:
    return struct.pack("<?d", spare is not None, spare or 0.0)
