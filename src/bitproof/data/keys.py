"""Keys for randomness, hashed from named parts."""

import hashlib
import struct
from typing import Final

_PAIR: Final = struct.Struct("<cqq")


class Keys:
    """Keys of one purpose: ``Keys("sample", seed)(epoch, index)`` hashes all four parts.

    Parts are tagged by type and length before they are hashed (BLAKE2b, RFC 7693), so that no two lists of parts
    share an encoding: ("order", 1, 23) and ("order", 12, 3) differ, as do 1 and "1". Seeds and epochs are never
    added: seed 0 at epoch 1 has nothing in common with seed 1 at epoch 0.

    Args:
        parts: the parts that all keys share.
        size: bytes of a key, 1 to 64.

    """

    def __init__(self, *parts: str | int, size: int = 8) -> None:
        self._prefix = hashlib.blake2b("".join(map(_encoded, parts)).encode(), digest_size=size)

    def __call__(self, *parts: str | int) -> bytes:
        """Return the key of the shared parts followed by these."""
        state = self._prefix.copy()
        state.update("".join(map(_encoded, parts)).encode())
        return state.digest()

    def pair(self, first: int, second: int) -> bytes:
        """Return the key of the shared parts followed by two integers of 64 bits, at the speed a sample needs."""
        state = self._prefix.copy()
        state.update(_PAIR.pack(b"p", first, second))
        return state.digest()


def derive(*parts: str | int, size: int = 8) -> bytes:
    """Hash named parts to a key of `size` bytes (1 to 64)."""
    return Keys(size=size)(*parts)


def derive_int(*parts: str | int) -> int:
    """Hash named parts to an integer of 64 bits (little-endian)."""
    return int.from_bytes(derive(*parts), "little")


def _encoded(part: str | int) -> str:
    # int(...) so that a NumPy integer or a bool means the same key as the plain integer.
    tag, text = ("s", part) if isinstance(part, str) else ("i", str(int(part)))
    return f"{tag}{len(text)}:{text}"
