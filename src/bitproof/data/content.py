"""A cheap fingerprint of a data set: its length, and the content of a few samples."""

import dataclasses
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
import xxhash

from bitproof.data.keyed import Indexable, KeyedDataset
from bitproof.data.order import Order

PROBES: Final = 8
"""Samples whose content is hashed."""

_VERSION: Final = "1"


def fingerprint_of(dataset: Indexable) -> str:
    """Return a fingerprint of a map-style data set: version, samples hashed, XXH3-64.

    It is the data set's own ``fingerprint()`` where it has such a method. Otherwise the first, the last and six
    samples between are read twice, under generators set for them, and their exact bytes hashed. It notices other data,
    another length, another order on disk, another preprocessing. It does not notice a change of a sample it does not
    read. Samples that are not the same when read twice (a generator of the data set's own), or that hold objects
    whose bytes are unknown, are left out, which the count shows: "1:0:…" knows the length only.
    """
    own = getattr(dataset, "fingerprint", None)
    if callable(own):
        return f"own:{_short(str(own()))}"
    digest, hashed = xxhash.xxh3_64(), 0
    digest.update(f"{len(dataset)};".encode())
    for content in probe(dataset, probe_indices(len(dataset))):
        if content is not None:
            digest.update(content)
            hashed += 1
    return f"{_VERSION}:{hashed}:{digest.hexdigest()}"


def _short(text: str) -> str:
    return text if len(text) <= 64 else xxhash.xxh3_128_hexdigest(text.encode())


def probe_indices(n: int) -> list[int]:
    """Return the indices of the samples to hash: the first, the last, and others spread by a fixed order."""
    if n <= PROBES:
        return list(range(n))
    chosen = dict.fromkeys([0, n - 1, *Order(n, seed=_PROBE_SEED)[0:PROBES].tolist()])
    return list(chosen)[:PROBES]


_PROBE_SEED: Final = 0xF1D0


def probe(dataset: Indexable, indices: Sequence[int]) -> list[bytes | None]:
    """Return each sample's digest, or None where it has no stable one."""
    reader = KeyedDataset(dataset, _PROBE_SEED, keyed=True, collate=_digests)
    first, second = ([reader[0, index] for index in indices] for _ in range(2))
    return [a if a == b else None for a, b in zip(first, second, strict=True)]


def _digests(samples: list[Any]) -> bytes | None:
    return content_digest(samples[0])


def content_digest(sample: Any) -> bytes | None:
    """Return the XXH3-128 of a sample's exact bytes and structure, or None where it holds an unknown object."""
    digest = xxhash.xxh3_128()
    try:
        _update(digest.update, sample)
    except _UnknownContentError:
        return None
    return digest.digest()


class _UnknownContentError(Exception):
    """An object whose bytes are not known."""


def _update(update: Callable[[bytes], None], value: Any) -> None:
    if isinstance(value, torch.Tensor):
        host = value.detach().cpu().contiguous()
        update(f"tensor:{host.dtype}:{tuple(host.shape)};".encode())
        update(host.reshape(-1).view(torch.uint8).numpy().tobytes() if host.numel() else b"")
    elif isinstance(value, np.ndarray | np.generic) and value.dtype != object:
        update(f"array:{value.dtype.str}:{value.shape};".encode())
        update(np.ascontiguousarray(value).tobytes())
    elif isinstance(value, str | bytes):
        raw = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
        update(f"{type(value).__name__}:{len(raw)};".encode() + raw)
    elif value is None or isinstance(value, bool | numbers.Number):
        update(f"{type(value).__name__}:{value!r};".encode())
    elif isinstance(value, Mapping):
        update(f"dict:{len(value)};".encode())
        for key, item in value.items():
            _update(update, key)
            _update(update, item)
    elif isinstance(value, list | tuple):
        update(f"list:{len(value)};".encode())
        for item in value:
            _update(update, item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        _update(update, {field.name: getattr(value, field.name) for field in dataclasses.fields(value)})
    elif hasattr(value, "__array_interface__"):  # an image of Pillow, among others
        _update(update, np.asarray(value))
    else:
        raise _UnknownContentError
