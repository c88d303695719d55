"""A checkpoint that is open for reading."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from xxhash import xxh3_128_hexdigest

from bitproof.errors import CheckpointCorruptError, CheckpointMismatchError
from bitproof.store.dtypes import DTYPES
from bitproof.store.hashing import Hasher
from bitproof.store.manifest import Commit, Contents, Entry
from bitproof.store.pack import MappedPack


class Checkpoint:
    """One checkpoint, open. Its files stay readable to it when they are replaced or removed.

    Attributes:
        commit: what the store knows of it.
    """

    def __init__(
        self, commit: Commit, contents: Contents, packs: list[MappedPack], verified: Callable[[Entry], None]
    ) -> None:
        self.commit = commit
        self._contents, self._packs, self._report = contents, packs, verified
        self._verified: set[str | None] = set()  # names; None is the document

    @property
    def step(self) -> int:
        """The training step it is of."""
        return self.commit.step

    @property
    def facts(self) -> Mapping[str, Any]:
        """What the saver noted."""
        return self.commit.facts

    @property
    def document(self) -> bytes:
        """The document, verified.

        Raises:
            CheckpointCorruptError: a bit of it is not as it was saved.
        """
        entry = self._contents.document
        self._verify(None, entry)
        return bytes(self._packs[entry.pack].bytes_of(entry))

    @property
    def tensors(self) -> "Tensors":
        """The tensors by name: mapped, and verified when first read."""
        return Tensors(self._contents.tensors, self._read)

    def verify(self) -> None:
        """Read and verify every bit of it.

        Raises:
            CheckpointCorruptError: the first part that is not as it was saved.
        """
        every: list[tuple[str | None, Entry]] = [(None, self._contents.document), *self._contents.tensors.items()]
        parts = [(name, entry) for name, entry in every if name not in self._verified]
        with Hasher(sum(entry.nbytes for _, entry in parts)) as hasher:
            jobs = [(name, entry, hasher.digest(self._packs[entry.pack].bytes_of(entry))) for name, entry in parts]
            for name, entry, job in jobs:
                self._compare(name, entry, job.result())

    def load_into(self, targets: Mapping[str, torch.Tensor]) -> None:
        """Copy every tensor into an existing one, bit for bit.

        Everything is verified, and compared with the targets, before the first is changed. Pages of the files are
        read as they are needed and can be dropped by the system; no tensor is held twice in anonymous memory.

        Args:
            targets: the same names as :attr:`tensors`, each of the same dtype and shape, on any device.

        Raises:
            CheckpointMismatchError: names, dtypes or shapes differ; no target was changed.
            CheckpointCorruptError: a bit is not as it was saved; no target was changed.
        """
        differences = [
            *(f"{name}: only in the checkpoint" for name in self._contents.tensors if name not in targets),
            *(f"{name}: not in the checkpoint" for name in targets if name not in self._contents.tensors),
        ]
        for name, entry in self._contents.tensors.items():
            if name in targets:
                expected, found = (DTYPES[entry.dtype], entry.shape), (targets[name].dtype, tuple(targets[name].shape))
                if expected != found:
                    differences.append(
                        f"{name}: saved as {expected[0]} {list(expected[1])}, found {found[0]} {list(found[1])}"
                    )
        if differences:
            shown = "; ".join(differences[:5]) + (f"; and {len(differences) - 5} more" if len(differences) > 5 else "")
            raise CheckpointMismatchError(
                f"Checkpoint {self.commit.sequence} (step {self.step}) does not fit: {shown}."
            )
        self.verify()
        with torch.no_grad():
            for name, entry in self._contents.tensors.items():
                targets[name].copy_(self._packs[entry.pack].tensor(entry))

    def _read(self, name: str) -> torch.Tensor:
        entry = self._contents.tensors[name]
        self._verify(name, entry)
        return self._packs[entry.pack].tensor(entry)

    def _verify(self, name: str | None, entry: Entry) -> None:
        if name not in self._verified:
            self._compare(name, entry, xxh3_128_hexdigest(self._packs[entry.pack].bytes_of(entry)))

    def _compare(self, name: str | None, entry: Entry, found: str) -> None:
        if found != entry.digest:
            what = "the document" if name is None else f"tensor {name!r}"
            pack = self.commit.packs[entry.pack].name
            raise CheckpointCorruptError(
                f"Checkpoint {self.commit.sequence} (step {self.step}) is damaged: {what} in pack {pack} should have the "
                f"digest {entry.digest} and has {found}."
            )
        self._verified.add(name)
        self._report(entry)


class Tensors(Mapping[str, torch.Tensor]):
    """A checkpoint's tensors by name; reading one maps and verifies it, and raises CheckpointCorruptError if damaged.

    A tensor that was read lies over the file's pages. Copy it before writing into it.
    """

    def __init__(self, entries: Mapping[str, Entry], read: Callable[[str], torch.Tensor]) -> None:
        self._entries, self._read_one = entries, read

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._read_one(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def describe(self, name: str) -> tuple[torch.dtype, tuple[int, ...], str]:
        """Return a tensor's dtype, shape and XXH3-128 digest, without reading it."""
        entry = self._entries[name]
        return DTYPES[entry.dtype], entry.shape, entry.digest
