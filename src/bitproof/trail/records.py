"""What a trail holds, as plain data.

A leg's file is a row a step. Each row has a *head*, kept for ever (one digest a facet, the batch's samples, the
generators' digests), and a *detail*, kept for the latest steps (one digest and one sketch a tensor). Names repeat at
every step, so they are kept once, in a *layout* that rows point to.
"""

import struct
from typing import Any, Literal

import msgspec

SCHEMA_VERSION = 1

STATE_FACETS = ("weights", "buffers", "optimizer", "hyperparameters", "scaler", "mode")
"""State before the step."""
WORK_FACETS = ("batch", "loss", "gradients")
"""What the step did."""
RESULT_FACETS = STATE_FACETS + WORK_FACETS
"""What decides a verdict, in causal order."""
SEAM_FACETS = ("weights", "buffers", "optimizer", "hyperparameters")
"""The state by which a resumed leg is looked up in the reference."""

EventKind = Literal[
    "seed",
    "rng-restored",
    "load-state-dict",
    "file-saved",
    "file-loaded",
    "loader-started",
    "eval-loader-started",
    "scaler-skipped",
    "threads-set",
    "deterministic-set",
    "recompute",
    "not-observed",
    "stopped",
    "ended",
]


Sample = int | tuple[int, int]
"""An index in the dataset; (epoch, index) from ``bitproof.data.Loader``."""


class Layout(msgspec.Struct, frozen=True, array_like=True):
    """The names and kinds of the tensors of one facet, in the order of a row's digests."""

    facet: str
    names: tuple[str, ...]
    kinds: tuple[str, ...]
    """dtype and shape of each, such as ``float32[64,10]``; ``value`` for a plain Python value, ``none`` for None."""


class TensorRow(msgspec.Struct, array_like=True):
    """One facet at one step: a digest and a sketch a tensor."""

    layout: int
    digests: bytes
    """8 bytes a tensor, little endian."""
    sketches: bytes = b""
    """24 bytes a tensor: its first, middle and last element, each left-aligned in 8 bytes. Empty if not kept."""


class MicroHead(msgspec.Struct, array_like=True):
    """One backward pass."""

    batch: int | None
    """Root digest of what entered from outside; None if nothing was seen."""
    samples: bytes
    """8 bytes a sample: the digests of the rows of the batch's first tensor."""
    indices: list[Sample] | None
    """Which samples of the dataset these are, where the loader shows it."""
    loss: int | None
    loss_value: float | None
    loader: int | None
    """Digest of what the data loader yielded (evidence, as it may run ahead of the model)."""
    buffers: int | None = None
    """Root digest of the buffers before this pass, for the second and further ones of a step."""
    rng: dict[str, int] = {}
    """Generators when the model is called, for the second and further passes of a step."""


class StepHead(msgspec.Struct, array_like=True):
    """The part of a step that is kept for ever."""

    step: int
    """Counted from 1 in this leg."""
    roots: dict[str, int]
    """One digest a result facet. A facet that could not be seen is missing."""
    micros: list[MicroHead]
    rng_start: dict[str, int]
    """Generators at the first loader or model activity of the step."""
    rng_forward: dict[str, int]
    """Generators when the model is first called."""
    updates: int
    """Optimizer calls that make up this step."""
    skipped: bool
    """The gradient scaler skipped the update."""
    seconds: float
    """Monotonic time since the recorder was attached."""
    rate: float | None = None
    """The first group's learning rate."""


class StepDetail(msgspec.Struct, array_like=True):
    """The part of a step that is kept for the latest steps."""

    rows: list[TensorRow]
    batches: list[TensorRow]
    """One a micro-step."""
    losses: list[TensorRow]
    buffers: list[TensorRow | None] = []
    """One a micro-step; None for the first, whose buffers are a facet of the step."""
    states: list[tuple[str, int, bytes]] = []
    """Name, digest and state of each generator that had changed by this step."""


class Event(msgspec.Struct, array_like=True):
    """Something that happened between tensors."""

    step: int
    """Steps completed in this leg when it happened."""
    micro: int
    kind: EventKind
    data: dict[str, Any]
    where: str | None
    """The user's ``file:line``."""
    saved: TensorRow | None = None
    """For ``file-saved``: the leaves of the tree that was given to the writer."""


class Tensors(msgspec.Struct, frozen=True):
    """A facet's tensors by name, joined from a layout and a row."""

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    digests: tuple[int, ...]
    sketches: tuple[bytes, ...]

    @classmethod
    def join(cls, layout: Layout, row: TensorRow) -> "Tensors":
        """Put a layout and a row together."""
        digests = unpack_digests(row.digests)
        sketches = tuple(row.sketches[i : i + 24] for i in range(0, len(row.sketches), 24))
        return cls(layout.names, layout.kinds, digests, sketches or (b"",) * len(digests))

    def by_name(self) -> dict[str, tuple[str, int, bytes]]:
        """Return name → (kind, digest, sketch)."""
        return {
            name: (kind, digest, sketch)
            for name, kind, digest, sketch in zip(self.names, self.kinds, self.digests, self.sketches, strict=True)
        }


def pack_digests(digests: list[int]) -> bytes:
    """Pack digests into 8 bytes each, little endian."""
    return struct.pack(f"<{len(digests)}Q", *digests)


def unpack_digests(data: bytes) -> tuple[int, ...]:
    """Undo :func:`pack_digests`."""
    return struct.unpack(f"<{len(data) // 8}Q", data)
