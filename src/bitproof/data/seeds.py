"""Seeds of samples, hashed from (purpose, seed, epoch, index), a batch at a time."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np

from bitproof.data.keys import derive
from bitproof.data.order import UInt64s, splitmix

SampleKey = tuple[int, ...]
"""(epoch, index) of one sample; (epoch, index, k) where a batch sampler draws it for the k-th time beside the first."""

PARTS: Final = 4
"""Words of 64 bits in a seed: one for torch's generator, three for python's and NumPy's."""

_GAMMA: Final = np.array(0x9E3779B97F4A7C15, dtype=np.uint64)


def seeds_of(purpose: str, seed: int, keys: Sequence[SampleKey]) -> UInt64s:
    """Return the seeds of samples, uint64[k, 4].

    (purpose, seed, epoch) is hashed to four words (BLAKE2b). In each of the four columns the indices are then taken through
    splitmix64 as a counter from that word on (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators",
    2014): within an epoch no two samples agree in any column, and all samples of a batch are computed at once.

    Args:
        purpose: what the randomness is for.
        seed: of the run.
        keys: of k samples.

    """
    return _mixed(_starts(purpose, seed, keys), keys)


def seeds_of_batch(seed: int, keys: Sequence[SampleKey]) -> UInt64s:
    """Return the seeds of a batch's samples, and after them that of collating it, uint64[k + 1, 4]."""
    starts = np.empty((len(keys) + 1, PARTS), dtype=np.uint64)
    starts[:-1], starts[-1:] = _starts("sample", seed, keys), _starts("collate", seed, keys[:1])
    return _mixed(starts, [*keys, keys[0]])


def _starts(purpose: str, seed: int, keys: Sequence[SampleKey]) -> UInt64s:
    """Return uint64[k, 4], or uint64[1, 4] where all are the same."""
    heads = {(key[0], *key[2:]) for key in keys}
    if len(heads) == 1:
        return _start(purpose, seed, *heads.pop())[None]
    return np.stack([_start(purpose, seed, key[0], *key[2:]) for key in keys])


def _mixed(starts: UInt64s, keys: Sequence[SampleKey]) -> UInt64s:
    seeds: UInt64s = starts + (np.array([key[1] for key in keys], dtype=np.uint64) * _GAMMA)[:, None]
    splitmix(seeds, np.empty_like(seeds))
    return seeds


@lru_cache(maxsize=4096)
def _start(purpose: str, seed: int, *head: int) -> UInt64s:
    digest = derive(purpose, seed, *head, size=8 * PARTS)
    return np.frombuffer(digest, dtype="<u8").astype(np.uint64)
