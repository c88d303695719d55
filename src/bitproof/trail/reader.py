"""Read a trail: strictly, without running code, also while it is still being written."""

import contextlib
import itertools
import os
import re
import shutil
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, overload

import msgspec

from bitproof import fingerprint
from bitproof.errors import TrailCorruptError, TrailExistsError, TrailNotFoundError, TrailVersionError, UsageError
from bitproof.trail.file import APPLICATION_ID, DRAFT, SUFFIX, unseal
from bitproof.trail.log import is_damaged
from bitproof.trail.records import SCHEMA_VERSION, Event, Layout, StepDetail, StepHead, TensorRow, Tensors

_NAME = re.compile(r"leg-(\d+)\.rank-(\d+)(?:\.process-(\d+))?" + re.escape(SUFFIX))
_FILE = re.compile(_NAME.pattern + "(-wal|-shm|-journal)?")
_NOTE = re.compile(r"(leg-\d+|problem)\.\d+\.json")
_ALGORITHMS = {"cpu": fingerprint.HOST_ALGORITHM, "other": fingerprint.DEVICE_ALGORITHM}
_T = TypeVar("_T")


@dataclass(frozen=True)
class Detail:
    """The tensors of a step, by facet."""

    facets: dict[str, Tensors]
    batches: tuple[Tensors, ...]
    losses: tuple[Tensors, ...]
    buffers: tuple[Tensors | None, ...]
    """A micro-step each; None for the first."""


@dataclass
class Leg:
    """One process's leg, read from its file."""

    path: Path
    number: int
    rank: int
    meta: dict[str, Any]
    steps: Sequence[StepHead]
    final: StepHead | None
    events: list[Event]
    _layouts: dict[int, Layout] = field(repr=False)

    @property
    def environment(self) -> dict[str, Any]:
        """What could change bits, when the first step was taken."""
        found: dict[str, Any] = self.meta.get("environment", {})
        return found

    @property
    def world_size(self) -> int:
        """How many ranks took part."""
        return int(self.meta.get("world_size", 1))

    @property
    def ended(self) -> str | None:
        """``ended`` if the process ended by itself, ``stopped`` if bitproof ended it, None if it was cut off."""
        return next((e.kind for e in reversed(self.events) if e.kind in {"ended", "stopped"}), None)

    def detail(self, step: int) -> Detail | None:
        """Return the tensors of a step (from 1), or None where only roots were kept."""
        if step not in self._details:
            self._details[step] = self._read_detail("steps", step)
        return self._details[step]

    def final_detail(self) -> Detail | None:
        """Return the tensors after the last step, or None if they could not be seen."""
        return self._read_detail("final", 1) if self.final is not None else None

    def generator_state(self, name: str, digest: int) -> bytes | None:
        """Return the state of a generator that has this digest, or None where it was not kept."""
        if (name, digest) not in self._states:
            for head in self.steps:
                if digest in _digests_of(head, name):
                    self.detail(head.step)
                    break
        return self._states.get((name, digest))

    def tensors(self, row: TensorRow) -> Tensors:
        """Join a row with its layout."""
        layout = self._layouts.get(row.layout)
        if layout is None or 8 * len(layout.names) != len(row.digests):
            raise _corrupt(self.path, f"the names of layout {row.layout} are not those of the tensors")
        return Tensors.join(layout, row)

    @cached_property
    def _details(self) -> dict[int, Detail | None]:
        return {}

    @cached_property
    def _states(self) -> dict[tuple[str, int], bytes]:
        return {}

    def _read_detail(self, table: str, key: int) -> Detail | None:
        column = {"steps": "step", "final": "id"}[table]
        with _reading(self.path) as connection:
            row = connection.execute(f"SELECT detail FROM {table} WHERE {column} = ?", (key,)).fetchone()  # noqa: S608
        if row is None or row[0] is None:
            return None
        detail = _decode(self.path, f"{table}.detail", key, row[0], StepDetail)
        self._states.update({(name, digest): state for name, digest, state in detail.states})
        rows = [(r.layout, self.tensors(r)) for r in detail.rows]
        facets = {self._layouts[number].facet: tensors for number, tensors in rows}
        return Detail(
            facets,
            tuple(self.tensors(r) for r in detail.batches),
            tuple(self.tensors(r) for r in detail.losses),
            tuple(self.tensors(r) if r is not None else None for r in detail.buffers),
        )


@dataclass(frozen=True)
class Trail:
    """A folder of legs."""

    path: Path
    legs: tuple[Leg, ...]
    """By leg number, then rank."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that wrote anything."""
        return tuple(sorted({leg.rank for leg in self.legs}))

    def of_rank(self, rank: int) -> list[Leg]:
        """Return one rank's legs, in order."""
        return [leg for leg in self.legs if leg.rank == rank]


def read_trail(path: str | os.PathLike[str], *, lazily: bool = False) -> Trail:
    """Read a trail.

    Args:
        path: its folder.
        lazily: read and verify each step when it is asked for, so that a look at the end of a long leg costs no more
            than the end of a short one. Damage is then found where it is met.

    Raises:
        TrailNotFoundError: there is none.
        TrailCorruptError: a file is empty, cut or damaged.
        TrailVersionError: it was written by another version or with another algorithm.
    """
    folder = Path(path)
    files = _leg_files(folder)
    if not files:
        raise TrailNotFoundError(_why_no_legs(folder))
    return Trail(folder, tuple(_read_leg(*file, lazily=lazily) for file in files))


def next_leg(folder: Path) -> int:
    """Return the number for the next leg to be written to a folder."""
    return max((number for _, number, _ in _leg_files(folder)), default=0) + 1


def _digests_of(head: StepHead, name: str) -> set[int | None]:
    return {head.rng_start.get(name), head.rng_forward.get(name), *(micro.rng.get(name) for micro in head.micros)}


def claim_folder(folder: Path, *, append: bool, force: bool) -> int:
    """Make a folder ready for a new leg.

    Args:
        folder: for the trail; made if missing.
        append: add a leg to a trail that is there.
        force: remove a trail that is there; nothing but a trail is ever removed.

    Returns:
        The number of the leg to write.

    Raises:
        TrailExistsError: there is something at the path, and neither option fits it.
        UsageError: the folder cannot be made.
    """
    if folder.exists() and not folder.is_dir():
        msg = f"{folder} is a file, and a trail is a folder. Choose another path."
        raise TrailExistsError(msg)
    taken = folder.exists() and any(folder.iterdir())
    if taken and not append:
        if not force:
            msg = (
                f"{folder} exists. Add a leg to it (--append, or append=True), replace it (--force, or force=True), "
                "or choose another path."
            )
            raise TrailExistsError(msg)
        if not is_trail(folder):
            msg = f"{folder} exists and is not a trail, and only a trail is replaced. Choose another path."
            raise TrailExistsError(msg)
        shutil.rmtree(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        msg = f"cannot write to {folder} ({error.strerror}). Name a folder that can be written to."
        raise UsageError(msg) from error
    return next_leg(folder)


def missing_folders(folder: Path) -> list[Path]:
    """List a folder and those that it lies in, innermost first, as far as they do not exist."""
    return list(itertools.takewhile(lambda path: not path.exists(), [folder, *folder.parents]))


def withdraw_folders(made: Sequence[Path]) -> None:
    """Remove a folder that was made for a trail, and those made around it, where nobody has put anything else there.

    Args:
        made: from :func:`missing_folders`, before they were made.
    """
    if made and is_trail(made[0]):
        shutil.rmtree(made[0])
        with contextlib.suppress(OSError):  # somebody has put something there
            for folder in made[1:]:
                folder.rmdir()


def _leg_files(folder: Path) -> list[tuple[Path, int, int]]:
    if not folder.is_dir():
        return []
    found = []
    for path in folder.iterdir():
        match = _NAME.fullmatch(path.name)
        if match and path.is_file():
            found.append((path, int(match[1]), int(match[2]), int(match[3] or 1)))
    return [(path, leg, rank) for path, leg, rank, process in sorted(found, key=lambda f: f[1:]) if process == 1]


def _why_no_legs(folder: Path) -> str:
    if not folder.exists():
        return f"no trail at {folder}: there is nothing there. Record one with: bitproof record -o {folder} -- COMMAND"
    if not folder.is_dir():
        return f"no trail at {folder}: a trail is a folder, and this is a file"
    return (
        f"no trail at {folder}: the folder holds no {SUFFIX} file. "
        f"The recorded command may have taken no optimizer step; record again with: bitproof record -o {folder} -- COMMAND"
    )


class _reading:  # noqa: N801  # used like a function
    """Open a leg's file for reading; what SQLite says about damage becomes our error."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> sqlite3.Connection:
        self._connection = sqlite3.connect(f"file:{_quoted(self._path)}?mode=rw", uri=True, isolation_level=None)
        self._connection.text_factory = _text
        return self._connection

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _trace: object) -> None:
        self._connection.close()
        if isinstance(error, sqlite3.DatabaseError | UnicodeDecodeError):
            raise _corrupt(self._path, str(error)) from error


def _text(value: bytes) -> str:
    """Read a text of the database, which damage may have made none: no seal fits one that was changed."""
    return value.decode(errors="replace")


def _quoted(path: Path) -> str:
    return str(path.resolve()).replace("%", "%25").replace("?", "%3f").replace("#", "%23")


def _read_leg(path: Path, number: int, rank: int, *, lazily: bool) -> Leg:
    if path.stat().st_size == 0 and not path.with_name(path.name + "-wal").exists():
        raise _corrupt(path, "the file is empty")
    log = path.with_name(path.name + "-wal")
    if log.exists() and is_damaged(log.read_bytes()):
        raise _corrupt(log, "a part before its end has changed since it was written")
    with _reading(path) as connection:
        if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
            raise _corrupt(path, "it holds no trail")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version != SCHEMA_VERSION:
            newer = "newer" if version > SCHEMA_VERSION else "older"
            msg = (
                f"{path} was written in version {version} of the trail format, and this bitproof reads version "
                f"{SCHEMA_VERSION}: it is {newer}. Read it with the bitproof that wrote it, or record the run again."
            )
            raise TrailVersionError(msg)
        meta = {
            key: _decode_json(path, key, value)
            for key, value in connection.execute("SELECT key, value FROM meta ORDER BY key")
        }
        if meta.get("algorithms") != _ALGORITHMS:
            msg = (
                f"{path} holds fingerprints of another algorithm: expected {_ALGORITHMS}, found "
                f"{meta.get('algorithms')}. They cannot be compared with this bitproof's; record the run again."
            )
            raise TrailVersionError(msg)
        layouts = dict(_rows(path, connection, "layouts", "SELECT id, layout FROM layouts", Layout))
        if lazily:
            taken = connection.execute("SELECT count(*), min(step), max(step) FROM steps").fetchone()
            steps: Sequence[StepHead] = _Heads(path, taken[0])
        else:
            heads = dict(_rows(path, connection, "steps.head", "SELECT step, head FROM steps ORDER BY step", StepHead))
            taken = _span(heads)
            steps = list(heads.values())
        final = dict(_rows(path, connection, "final.head", "SELECT id, head FROM final", StepHead))
        events = dict(_rows(path, connection, "events", "SELECT id, event FROM events ORDER BY id", Event))
        problem = "ok" if lazily else connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if problem != "ok":
        raise _corrupt(path, problem)
    for what, (count, first, latest) in (("steps", taken), ("events", _span(events))):
        if count and (first, latest) != (1, count):
            raise _corrupt(path, f"{what} are missing: expected 1 to {count}, found {first} to {latest}")
    last = final.get(1)
    if last is not None and last.step != len(steps) + 1:
        last = None  # steps were taken after it was written
    return Leg(path, number, rank, meta, steps, last, list(events.values()), layouts)


def _span(rows: Mapping[int, object]) -> tuple[int, int | None, int | None]:
    """Return how many rows there are, and the least and the greatest number of one."""
    return len(rows), min(rows, default=None), max(rows, default=None)


class _Heads(Sequence[StepHead]):
    """A leg's steps, read and verified some at a time when they are asked for."""

    _AT_ONCE = 1000

    def __init__(self, path: Path, count: int) -> None:
        self._path, self._count = path, count
        self._known: dict[int, list[StepHead]] = {}

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> StepHead: ...

    @overload
    def __getitem__(self, index: slice) -> list[StepHead]: ...

    def __getitem__(self, index: int | slice) -> StepHead | list[StepHead]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._count))]
        if index < 0:
            index += self._count
        if not 0 <= index < self._count:
            raise IndexError(index)
        block, place = divmod(index, self._AT_ONCE)
        if block not in self._known:
            query = (
                f"SELECT step, head FROM steps WHERE step > {block * self._AT_ONCE} ORDER BY step LIMIT {self._AT_ONCE}"  # noqa: S608
            )
            with _reading(self._path) as connection:
                rows = list(_rows(self._path, connection, "steps.head", query, StepHead))
            self._known[block] = [head for _, head in rows]
        return self._known[block][place]


def _rows(
    path: Path, connection: sqlite3.Connection, table: str, query: str, kind: type[_T]
) -> Iterator[tuple[int, _T]]:
    for key, sealed in connection.execute(query):
        yield key, _decode(path, table, key, sealed, kind)


def _decode(path: Path, table: str, key: int, sealed: object, kind: type[_T]) -> _T:
    data = unseal(table, key, sealed)
    if data is None:
        raise _corrupt(path, f"{table} {key} has changed since it was written")
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _corrupt(path, f"{kind.__name__}: {error}") from error


def _decode_json(path: Path, key: str, sealed: object) -> Any:
    data = unseal("meta", key, sealed)
    if data is None:
        raise _corrupt(path, f"meta {key!r} has changed since it was written")
    try:
        return msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _corrupt(path, f"meta: {error}") from error


def _corrupt(path: Path, found: str) -> TrailCorruptError:
    return TrailCorruptError(
        f"{path} is damaged: {found}. Nothing of it was used. Record the run again, or copy the trail again from where it was written."
    )


def notes(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield what processes that took no step wrote down; a note that a kill has cut says nothing."""
    for path in sorted((folder / "notes").glob("*.json")):
        with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
            yield msgspec.json.decode(path.read_bytes(), type=dict[str, Any])


def is_trail(folder: Path) -> bool:
    """Tell whether a folder holds nothing but a trail, so that it may be replaced."""
    if not folder.is_dir() or folder.is_symlink():
        return False
    return all(_is_ours(path) for path in folder.iterdir())


def _is_ours(path: Path) -> bool:
    if path.name == "notes" and path.is_dir() and not path.is_symlink():
        return all(_NOTE.fullmatch(note.name) for note in path.iterdir())
    return path.is_file() and (path.name.startswith(DRAFT) or _FILE.fullmatch(path.name) is not None)
