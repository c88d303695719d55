"""Writing the tensors of one checkpoint: what is shared, what is new, and the proof that it arrived."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from xxhash import xxh3_128_hexdigest

from bitproof.errors import CheckpointCorruptError, TornSaveError
from bitproof.store.atomic import TEMPORARY, make_folder, write_atomic
from bitproof.store.hashing import Hasher
from bitproof.store.layout import Layout
from bitproof.store.manifest import Commit, Contents, Entry, Pack
from bitproof.store.pack import DOCUMENT, MappedPack, Piece, header_of, name_of, offsets
from bitproof.store.sharing import share
from bitproof.store.system import System

if TYPE_CHECKING:
    from concurrent.futures import Future

_BEGINNING = 4096  # bytes that are compared before anything is digested


class Writer:
    """Write pieces into packs, remembering which tensors this process saw to be right on disk."""

    def __init__(self, system: System, layout: Layout, note: Callable[[str], None]) -> None:
        self._system, self._layout, self._note = system, layout, note
        self._seen: set[tuple[str, str]] = set()  # (pack, digest of a tensor)

    def trust(self, pack: Pack, entry: Entry) -> None:
        """Remember that a tensor was verified."""
        self._seen.add((pack.name, entry.digest))

    def write(
        self, pieces: list[Piece], last: tuple[Commit, Contents] | None
    ) -> tuple[tuple[Pack, ...], list[Entry], int]:
        """Write those pieces that the last checkpoint does not hold.

        Returns:
            The packs that hold them, where each piece is in these, and how many bytes of tensors were written.
        """
        with Hasher(sum(len(piece.data) for piece in pieces)) as hasher:
            alike = self._alike(pieces, last) if last else {}
            # What cannot be shared is digested while it is written; the others first, since that decides about them.
            jobs = {at: hasher.digest(pieces[at].data) for at in [*alike, *(set(range(len(pieces))) - set(alike))]}
            shared, packs = self._share(pieces, jobs, alike, last[0]) if last else ({}, [])
            new = [at for at in range(len(pieces)) if at not in shared]
            if new:
                pack, starts = self._write_pack([pieces[at] for at in new], [jobs[at] for at in new], hasher)
                packs.append(pack)
                for at, start in zip(new, starts, strict=True):
                    shared[at] = Entry(len(packs) - 1, start, pieces[at].dtype, pieces[at].shape, jobs[at].result())
        entries = [shared[at] for at in range(len(pieces))]
        self._seen = {(packs[entry.pack].name, entry.digest) for entry in entries}
        return tuple(packs), entries, sum(len(pieces[at].data) for at in new)

    def _alike(self, pieces: list[Piece], last: tuple[Commit, Contents]) -> dict[int, tuple[Entry, MappedPack]]:
        """Find the pieces that begin as they did in the last checkpoint: the others need no digest to be called new."""
        commit, contents = last
        mapped: dict[int, MappedPack] = {}
        for i, pack in enumerate(commit.packs):
            try:
                mapped[i] = MappedPack(self._system, self._layout.pack(pack.name), pack)
            except (OSError, CheckpointCorruptError) as error:
                self._note(f"What checkpoint {commit.sequence} has in pack {pack.name} was written again: {error}")
        alike = {}
        for at, piece in enumerate(pieces):
            entry = contents.document if piece.name == DOCUMENT else contents.tensors.get(piece.name)
            if entry and entry.pack in mapped and entry.nbytes == len(piece.data):
                pack_there = mapped[entry.pack]
                if piece.data[:_BEGINNING] == pack_there.bytes_of(entry)[:_BEGINNING]:
                    alike[at] = entry, pack_there
        return alike

    def _share(
        self,
        pieces: list[Piece],
        jobs: "dict[int, Future[str]]",
        alike: dict[int, tuple[Entry, MappedPack]],
        commit: Commit,
    ) -> tuple[dict[int, Entry], list[Pack]]:
        """Return where the pieces are that need not be written, in which packs."""
        same = {at: entry for at, (entry, _) in alike.items() if jobs[at].result() == entry.digest}
        new = sum(len(piece.data) for at, piece in enumerate(pieces) if at not in same)
        same = share(same, commit.packs, new)
        unseen = [at for at, entry in same.items() if (commit.packs[entry.pack].name, entry.digest) not in self._seen]
        with Hasher(sum(same[at].nbytes for at in unseen)) as hasher:
            found = {at: hasher.digest(alike[at][1].bytes_of(same[at])) for at in unseen}
            bad = {at for at, job in found.items() if job.result() != same[at].digest}
        if bad:
            names = ", ".join(repr(pieces[at].name) for at in sorted(bad))
            self._note(f"Damaged in checkpoint {commit.sequence} and written again: {names}")
        used = sorted({entry.pack for at, entry in same.items() if at not in bad})
        shared = {
            at: Entry(used.index(entry.pack), entry.offset, pieces[at].dtype, pieces[at].shape, entry.digest)
            for at, entry in same.items()
            if at not in bad
        }
        return shared, [commit.packs[i] for i in used]

    def _write_pack(self, pieces: list[Piece], jobs: "list[Future[str]]", hasher: Hasher) -> tuple[Pack, list[int]]:
        header = header_of(pieces)
        starts = offsets(pieces, len(header))
        read_back: list[Future[str]] = []
        names: list[Path] = []

        def parts(descriptor: int) -> Iterator[memoryview]:
            """Yield the parts; when asked for the next one, the last is in the file, and is read back from there."""
            read_back.clear()
            yield memoryview(header)
            for piece, start in zip(pieces, starts, strict=True):
                yield piece.data
                read_back.append(hasher.digest_file(self._system, descriptor, start, len(piece.data)))

        def place() -> Path:
            for piece, job, found in zip(pieces, jobs, read_back, strict=True):
                if job.result() != found.result():
                    raise TornSaveError(
                        f"{piece.name!r} in {self._layout.root} changed while it was being saved: its digest was "
                        f"{job.result()} in memory and is {found.result()} in the file. Nothing was committed. "
                        "Let nothing write to the tensors until the save returns, or save in the background."
                    )
            path = self._layout.pack(name_of(header, [job.result() for job in jobs]))
            make_folder(self._system, path.parent, self._note)
            names.append(path)
            return path

        write_atomic(self._system, self._layout.objects / f"{TEMPORARY}pack", parts, place, self._note)
        size = len(header) + sum(len(piece.data) for piece in pieces)
        return Pack(names[-1].stem, size, (len(header), xxh3_128_hexdigest(header))), starts
