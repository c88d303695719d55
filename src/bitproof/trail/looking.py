"""How a tensor, a plain value or a nested batch is looked at: what is kept of it is its kind, a digest and a sketch."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from bitproof.fingerprint import (
    ABSENT,
    combine,
    digest_all,
    digest_and_sketch,
    digest_bytes,
    digest_rows,
    digest_tensor,
    digest_text,
)

Entry = tuple[str, int, bytes]
"""Kind, digest, sketch."""
Entries = dict[str, Entry]
"""By name."""
Look = tuple[Entries, str, torch.Tensor]
"""A tensor to look at, and where what is seen goes."""
AWAITED: Entry = ("unseen", ABSENT, b"")
"""Holds a name's place until its tensor has been looked at."""
_PLAIN = (torch.Tensor, nn.Parameter)
_MOST_ROWS = 4_096


@dataclass(slots=True, eq=False)
class Seen:
    """One tensor or value that entered a module from outside."""

    name: str
    kind: str
    digest: int
    samples: list[int]


class Looker:
    """Looks at tensors and values.

    Args:
        note_unseen: is told what could not be seen.
    """

    def __init__(self, note_unseen: Callable[[str], None]) -> None:
        self._note_unseen = note_unseen

    def entry(self, tensor: torch.Tensor | None) -> Entry:
        """Return a tensor's kind, digest and sketch; kind ``unseen`` if it has no bytes to look at."""
        if tensor is None:
            return "none", ABSENT, b""
        try:
            if tensor.layout is torch.strided:
                return tensor_kind(tensor), *digest_and_sketch(tensor)
        except RuntimeError:  # it has no bytes of its own
            pass
        return self._unusual_entry(tensor)

    def _unusual_entry(self, tensor: torch.Tensor) -> Entry:
        """Look at a tensor that is made of others; what cannot be seen is said."""
        if tensor.layout is torch.sparse_coo:
            whole = tensor.detach().coalesce()
            return tensor_kind(tensor), combine([digest_tensor(whole.indices()), digest_tensor(whole.values())]), b""
        if hasattr(tensor, "__tensor_flatten__"):
            # The protocol of torch.utils._python_dispatch, which DTensor, quantized and nested tensors follow.
            parts = [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
            inner = [self.entry(part) for part in parts if isinstance(part, torch.Tensor)]
            if inner and all(kind != "unseen" for kind, _, _ in inner):
                return f"{type(tensor).__name__}({', '.join(e[0] for e in inner)})", combine(e[1] for e in inner), b""
        self._note_unseen(f"the content of a {type(tensor).__name__} ({tensor.layout}, on {tensor.device.type})")
        return "unseen", ABSENT, b""

    def look(self, looks: list[Look]) -> None:
        """Look at many tensors at once, which several threads can do."""
        plain = [look for look in looks if type(look[2]) in _PLAIN and look[2].layout is torch.strided]
        digests = digest_all([tensor for _, _, tensor in plain])
        for (entries, name, tensor), (digest, sketch) in zip(plain, digests, strict=True):
            entries[name] = (tensor_kind(tensor), digest, sketch)
        if len(plain) < len(looks):
            for entries, name, tensor in looks:
                if type(tensor) not in _PLAIN or tensor.layout is not torch.strided:
                    entries[name] = self.entry(tensor)

    def see(self, name: str, tensor: torch.Tensor, *, by_sample: bool = False) -> Seen:
        """Look at a tensor that enters, if wanted also at each of its rows."""
        kind, digest, _ = self.entry(tensor)
        samples: list[int] = []
        if by_sample and tensor.layout is torch.strided and tensor.dim() > 0 and 0 < tensor.shape[0] <= _MOST_ROWS:
            try:
                samples = digest_rows(tensor)
            except RuntimeError:  # it has no bytes of its own, and is seen as a whole
                samples = []
        return Seen(name, kind, digest, samples)

    def value(self, value: Any) -> Entry:
        """Look at whatever an optimizer holds."""
        if isinstance(value, torch.Tensor):
            return self.entry(value)
        if isinstance(value, (list, tuple, deque, dict)):
            parts = value.items() if isinstance(value, dict) else enumerate(value)
            digests = [d for key, v in parts for d in (digest_text(repr(key)), self.value(v)[1])]
            return "value", combine([digest_text(type(value).__name__), *digests]), b""
        if isinstance(value, (np.ndarray, np.generic)) and not value.dtype.hasobject:
            return f"{value.dtype}{list(value.shape)}", digest_bytes(value.tobytes()), b""
        if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
            return plain_entry(value)
        if not callable(value):
            self._note_unseen(f"a {type(value).__qualname__} in an optimizer")
        return "value", digest_text(getattr(value, "__qualname__", type(value).__qualname__)), b""


def tensor_leaves(tree: Any, name: str = "", above: tuple[int, ...] = ()) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors in nested mappings, sequences and data classes, with dotted names.

    Args:
        tree: what to look into.
        name: its name.
        above: identities of what holds it; what holds itself is looked into once.
    """
    if isinstance(tree, torch.Tensor):
        yield name or "0", tree
        return
    parts: Iterable[tuple[Any, Any]]
    if isinstance(tree, dict) or (hasattr(tree, "keys") and hasattr(tree, "__getitem__")):
        parts = ((key, tree[key]) for key in tree.keys())  # noqa: SIM118  # BatchEncoding iterates over something else
    elif isinstance(tree, (list, tuple)):
        parts = enumerate(tree)
    elif hasattr(tree, "__dataclass_fields__"):
        parts = ((key, getattr(tree, key, None)) for key in tree.__dataclass_fields__)
    else:
        return
    if id(tree) not in above:
        for key, value in parts:
            yield from tensor_leaves(value, f"{name}.{key}" if name else str(key), (*above, id(tree)))


def address(tensor: torch.Tensor) -> int:
    """Return where a host tensor's bytes are; 0 if it has none, as a fake one or a wrapper around others."""
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        return 0
    return tensor.data_ptr()


_kinds: dict[tuple[torch.dtype, torch.Size, torch.device], str] = {}


def tensor_kind(tensor: torch.Tensor) -> str:
    """Return dtype and shape, such as ``float32[64, 10]``, and the device if it is not the host."""
    key = (tensor.dtype, tensor.shape, tensor.device)
    kind = _kinds.get(key)
    if kind is None:
        device = "" if tensor.device.type == "cpu" else f"@{tensor.device.type}"
        dtype = str(tensor.dtype).removeprefix("torch.")
        kind = _kinds[key] = f"{dtype}{list(tensor.shape)}{device}"
    return kind


def plain_entry(value: Any) -> Entry:
    """Return kind, digest and sketch of a plain value; the sketch is its text, if that fits."""
    text = repr(value)
    return "value", digest_text(text), text.encode().ljust(24, b"\0") if len(text) <= 24 and text.isascii() else b""
