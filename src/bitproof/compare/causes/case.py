"""The evidence that cause rules look at."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from bitproof.compare.align import Joint
from bitproof.compare.timeline import Placed, Timeline
from bitproof.compare.verdict import Confidence, Divergence
from bitproof.environment import Difference
from bitproof.trail.records import Event, Sample, StepHead, Tensors, unpack_digests

ARITHMETIC = (
    *("torch.", "cpu.", "gpu.", "os.libc", "package.torch", "package.triton", "package.nvidia"),
    *("env.ATEN", "env.OMP", "env.GOMP", "env.KMP", "env.MKL", "env.OPENBLAS", "env.DNNL", "env.ONEDNN"),
    *("env.NCCL", "env.CU", "env.NVIDIA", "env.TORCH"),
)
"""How keys of the environment begin that change what arithmetic gives."""
_BESIDE = ("git.", "package.", "packages.")
"""Code and packages: most changes of them touch nothing that was run."""


@dataclass(frozen=True)
class Case:
    """One rank's divergence and everything known about it.

    Args:
        reference: what was expected.
        leg: the leg that parted from it.
        divergence: where.
        joint: how the leg joined; None if it is no resumed leg.
        interrupted: the earlier legs.
        environment: how the two environments differ.
        controlled: the reference was repeated, and came out the same up to the divergence.
        saved: the first difference in what is saved, if it came before the divergence.
        peers: the other ranks' (reference, leg).
    """

    reference: Timeline
    leg: Placed
    divergence: Divergence
    joint: Joint | None = None
    interrupted: tuple[Placed, ...] = ()
    environment: tuple[Difference, ...] = ()
    controlled: bool = False
    saved: Divergence | None = None
    saved_names: tuple[str, ...] = ()
    """All entries that differ in what is saved."""
    saved_apart: tuple[str, ...] = ()
    """How far some of them are apart."""
    peers: tuple[tuple[Timeline, Placed], ...] = field(default=())

    @property
    def resumed(self) -> bool:
        """Whether the leg was to continue another one."""
        return self.joint is not None

    @property
    def facet(self) -> str:
        """The facet that differs first."""
        return self.divergence.facet

    @property
    def arithmetic_differs(self) -> bool:
        """Whether settings differ that change what arithmetic gives."""
        return any(d.key.startswith(ARITHMETIC) for d in self.environment)

    @property
    def settings_differ(self) -> bool:
        """Whether settings differ that may have led here; changed code and most packages are no settings."""
        return any(d.key.startswith(ARITHMETIC) or not d.key.startswith(_BESIDE) for d in self.environment)

    @property
    def at_seam(self) -> bool:
        """Whether the first step after the seam already differs."""
        return self.divergence.step == self.leg.first

    @property
    def surest(self) -> Confidence:
        """The confidence of a finding that the evidence leaves no doubt about: without a control, doubt remains."""
        return "certain" if self.controlled or not self.resumed else "likely"

    def heads(self, step: int | None = None) -> tuple[StepHead, StepHead] | None:
        """Return both sides of a step, by default the one that differs first."""
        at = self.divergence.step if step is None else step
        one, other = self.reference.head(at), self.leg.head(at)
        return (one, other) if one is not None and other is not None else None

    def tensors(self, facet: str, step: int | None = None) -> tuple[Tensors, Tensors] | None:
        """Return both sides of a facet, where per-tensor digests were kept."""
        at = self.divergence.step if step is None else step
        one, other = self.reference.detail(at), self.leg.detail(at)
        if one is None or other is None or facet not in one.facets or facet not in other.facets:
            return None
        return one.facets[facet], other.facets[facet]

    def own_events(self, kind: str) -> list[Event]:
        """Return the leg's events of a kind, in order."""
        return [event for event in self.leg.leg.events if event.kind == kind]

    def events_before(self, kind: str) -> list[Event]:
        """Return the leg's events of a kind from before its first step ended."""
        return [event for event in self.own_events(kind) if event.step == 0]

    def where(self, kind: str, **wanted: object) -> str | None:
        """Return the user's line of the leg's last early event of a kind with the given facts."""
        fits = [e for e in self.events_before(kind) if all(e.data.get(k) == v for k, v in wanted.items())]
        return fits[-1].where if fits else None

    def loaded_at(self, on: str) -> str | None:
        """Return the user's line that loads an object of a kind; None where there are several of them.

        One that passed over keys is the one. Which of several objects a line loads, the trail does not tell.
        """
        loads = [e for e in self.events_before("load-state-dict") if e.data.get("on") == on]
        lenient = [e for e in loads if e.data.get("missing_keys_count") or e.data.get("unexpected_keys_count")]
        sides = self.tensors("weights" if on == "module" else "hyperparameters")
        owners = {name.partition("/")[0] for name in sides[0].names} if sides is not None else set()
        lines = {e.where for e in lenient or loads}
        return lines.pop() if len(lines) == 1 and (lenient or len(owners) <= 1) else None

    def saved_before(self) -> list[str]:
        """Say what was saved otherwise before training parted."""
        if self.saved is None or self.facet == "saved":
            return []
        said = "; ".join(self.saved_apart[:3]) or ", ".join(self.saved_names[:3])
        return [f"what was saved after step {self.saved.step} differed already: {said}"]

    def saved_leaves(self, most: int) -> list[tuple[int, dict[str, tuple[str, int]]]]:
        """Return (step, name → (kind, digest)) of the latest files that the earlier legs saved, in order."""
        saves = [
            (step, tensors)
            for placed in self.interrupted
            for step, by_micro in placed.saves.items()
            if step <= self.leg.offset
            for several in by_micro.values()
            for tensors in several
        ]
        return [
            (step, {name: entry[:2] for name, entry in tensors().by_name().items()}) for step, tensors in saves[-most:]
        ]

    @cached_property
    def uses_loader(self) -> bool:
        """Whether a data loader stands behind the batches."""
        return any(True for _ in self.leg.events("loader-started"))

    @cached_property
    def batches(self) -> list["Batch"]:
        """The reference's batches, in order."""
        return list(_batches(self.reference, self.reference.last))


@dataclass(frozen=True)
class Batch:
    """One backward pass's batch."""

    step: int
    micro: int
    samples: tuple[int, ...]
    indices: tuple[Sample, ...] | None
    root: int | None


def batch_at(head: StepHead, step: int, micro: int) -> Batch | None:
    """Return one of a step's batches, or None if there is none."""
    if micro >= len(head.micros):
        return None
    found = head.micros[micro]
    indices = tuple(found.indices) if found.indices is not None else None
    return Batch(step, micro, unpack_digests(found.samples), indices, found.batch)


def _batches(side: Timeline, last: int) -> Iterator[Batch]:
    for step in range(1, last + 1):
        head = side.head(step)
        if head is not None:
            for micro in range(len(head.micros)):
                batch = batch_at(head, step, micro)
                if batch is not None:
                    yield batch
