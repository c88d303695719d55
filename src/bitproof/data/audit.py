"""The same batches under two topologies: the first position that differs."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

from bitproof.data.content import content_digest
from bitproof.data.errors import TopologyError
from bitproof.data.loader import Loader


@dataclass(frozen=True)
class Topology:
    """How a batch is read: by how many ranks, with how many workers each."""

    world_size: int
    workers: int

    @classmethod
    def parse(cls, text: str) -> "Topology":
        """Read "4x2": 4 ranks with 2 workers each.

        Raises:
            TopologyError: the text is no such pair.

        """
        first, _, second = text.partition("x")
        if not (first.isdecimal() and second.isdecimal() and int(first)):
            raise TopologyError(f"topology {text!r}: expected RANKSxWORKERS, as in 4x2 (4 ranks with 2 workers each).")
        return cls(int(first), int(second))

    def __str__(self) -> str:
        return f"{self.world_size}x{self.workers}"


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The first position that differs.

    Args:
        position: in the stream of samples.
        facet: "order", where other samples were read, or "content", where the same sample came out differently.
        first: (epoch, index) under the first topology.
        second: (epoch, index) under the second.

    """

    position: int
    facet: str
    first: tuple[int, int]
    second: tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Audit:
    """What an audit found.

    Args:
        first: topology.
        second: topology it was compared with.
        batches: global batches read under each.
        samples: samples compared.
        unseen: of these, samples that hold objects whose bytes are not known: only their order was compared.
        difference: the first one, or None.

    """

    first: Topology
    second: Topology
    batches: int
    samples: int
    unseen: int
    difference: Difference | None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self) | {"first": str(self.first), "second": str(self.second)}

    @property
    def advice(self) -> tuple[str, ...]:
        """What to do about the difference, a line each; empty if there is none."""
        if self.difference is None:
            return ()
        if self.difference.facet == "order":
            what = "let the batches follow from seed and epoch alone: no generator, count, rank or worker of the sampler's own."
        else:
            what = "draw from the global generators or bitproof.data.sample_rng(), and keep nothing between samples."
        return (f"What to do: {what}", "Then check again: no loader makes up for this.")

    def __str__(self) -> str:
        unseen = f" ({self.unseen} of them by order only: their bytes are not known)" if self.unseen else ""
        compared = f"{self.samples} samples in {self.batches} batches under {self.first} and {self.second}{unseen}"
        if self.difference is None:
            return f"identical: {compared}; ranks' shares are disjoint and complete."
        found = self.difference
        epoch, index = found.first
        what = (
            f"{self.first} read sample {index} of epoch {epoch}, {self.second} sample {found.second[1]} of epoch {found.second[0]}"
            if found.facet == "order"
            else f"sample {index} of epoch {epoch} came out differently. The data set draws from a generator of its own, or "
            "keeps something between samples"
        )
        return f"different at position {found.position} ({found.facet}): {what}. Compared: {compared}."


@dataclass(frozen=True)
class _Read:
    """One sample as read: (epoch, index) and the digest of its content."""

    sample: tuple[int, int]
    digest: bytes | None


def audit(loader: Loader, first: Topology, second: Topology, *, batches: int = 20) -> Audit:
    """Read the loader's first batches under two topologies, and compare them sample by sample, before collating.

    Ranks are read one after another in this process, their workers are real.

    Args:
        loader: its data set, order, batch size and settings are used; it is not moved.
        first: ranks and workers.
        second: ranks and workers to compare with.
        batches: global batches, across epochs.

    Raises:
        BatchError: the batch size is not divisible by a world size.

    """
    read = [_positions(loader, topology, batches) for topology in (first, second)]
    difference, unseen = None, 0
    for position, (one, other) in enumerate(zip(*read, strict=True)):
        unseen += one.digest is None
        if one != other and difference is None:
            facet = "order" if one.sample != other.sample else "content"
            difference = Difference(position=position, facet=facet, first=one.sample, second=other.sample)
    return Audit(
        first=first, second=second, batches=batches, samples=len(read[0]), unseen=unseen, difference=difference
    )


def _positions(loader: Loader, topology: Topology, batches: int) -> list[_Read]:
    """Read batches under a topology; return the samples in the order of the stream."""
    ranks = [
        loader.with_topology(
            rank=rank, world_size=topology.world_size, num_workers=topology.workers, collate_fn=digests_of
        )
        for rank in range(topology.world_size)
    ]
    shares = [list(islice(_batches(rank), batches)) for rank in ranks]
    read: list[_Read] = []
    for batch in zip(*shares, strict=True):
        together: list[_Read | None] = [None] * sum(map(len, batch))
        for rank, share in enumerate(batch):
            together[rank :: topology.world_size] = share
        read += [sample for sample in together if sample is not None]
    return read


def _batches(loader: Loader) -> Iterator[list[_Read]]:
    while True:
        for digests in loader:
            yield [_Read(sample, digest) for sample, digest in zip(loader.last_samples, digests, strict=True)]


def digests_of(samples: list[Any]) -> list[bytes | None]:
    """Collate samples to the digests of their contents."""
    return [content_digest(sample) for sample in samples]
