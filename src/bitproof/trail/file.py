"""A leg's file: one SQLite database a process, written as the run goes.

WAL mode without fsync: every step is one commit that has reached the operating system when the call returns, so the
file survives the death of the process at any moment (not a loss of power). The log is folded into the database only
every 64 MiB and at the end, so a folder copied while it grows opens whole. The file appears under its name only when
it is complete, so a kill leaves all of it or nothing.

SQLite sees damage to its structure, not to what is stored in it: each value is *sealed* by a digest before it.
"""

import contextlib
import itertools
import os
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bitproof import fingerprint
from bitproof.trail.records import SCHEMA_VERSION, Event, Layout, StepDetail, StepHead

SUFFIX = ".leg"
DRAFT = ".draft-"
"""Beginning of the name of a file that is not complete yet."""
APPLICATION_ID = 0x62_70_72_66  # "bprf", shown by file(1)
_FOLD_PAGES = 16_384  # 64 MiB of 4 KiB pages
_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE layouts (id INTEGER PRIMARY KEY, layout BLOB NOT NULL);
CREATE TABLE steps (step INTEGER PRIMARY KEY, head BLOB NOT NULL, detail BLOB);
CREATE TABLE final (id INTEGER PRIMARY KEY CHECK (id = 1), head BLOB NOT NULL, detail BLOB NOT NULL);
CREATE TABLE events (id INTEGER PRIMARY KEY, event BLOB NOT NULL);
"""
_orphans: list[sqlite3.Connection] = []
"""Connections inherited through fork: never used, and never closed either, since closing would drop the parent's locks."""


def seal(table: str, key: int | str, value: bytes) -> bytes:
    """Put a digest of a value, and of where it belongs, before it."""
    return _seal(table, key, value) + value


def unseal(table: str, key: int | str, sealed: object) -> bytes | None:
    """Undo :func:`seal`; None if a bit has changed."""
    if not isinstance(sealed, bytes) or sealed[:8] != _seal(table, key, sealed[8:]):
        return None
    return sealed[8:]


def _seal(table: str, key: int | str, value: bytes) -> bytes:
    digest = fingerprint.combine([fingerprint.digest_text(f"{table}/{key}"), fingerprint.digest_bytes(value)])
    return digest.to_bytes(8, "little")


def leg_name(leg: int, rank: int, process: int) -> str:
    """Name the file of one process of a leg."""
    again = "" if process == 0 else f".process-{process + 1}"
    return f"leg-{leg:03d}.rank-{rank:03d}{again}{SUFFIX}"


class LegWriter:
    """Writes one process's leg.

    Args:
        folder: the trail; made if missing.
        leg: number of the leg, from 1.
        rank: of this process.
        meta: facts about the leg, stored as JSON; ``environment`` among them.

    Attributes:
        on_error: told once of a write that the system refused (a full disk); the file then ends there. With None, the
            refusal is raised.
    """

    def __init__(self, folder: Path, leg: int, rank: int, meta: dict[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        facts = {
            "schema": SCHEMA_VERSION,
            "algorithms": {"cpu": fingerprint.HOST_ALGORITHM, "other": fingerprint.DEVICE_ALGORITHM},
            "leg": leg,
            "rank": rank,
            "pid": os.getpid(),
            **meta,
        }
        self.path = _claim(folder, leg, rank, _beginning(facts))
        self._connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        execute = self._connection.execute
        execute("PRAGMA journal_mode=WAL")
        execute("PRAGMA synchronous=OFF")
        execute(f"PRAGMA wal_autocheckpoint={_FOLD_PAGES}")
        self._encode = msgspec.msgpack.Encoder().encode
        self._events = itertools.count(1)
        self._refused = False
        self.on_error: Callable[[Exception], None] | None = None

    def layout(self, number: int, layout: Layout) -> None:
        """Store a layout under its number."""
        self._execute("INSERT INTO layouts VALUES (?, ?)", (number, seal("layouts", number, self._encode(layout))))

    def step(self, head: StepHead, detail: StepDetail) -> None:
        """Store a step, in place of an earlier row with its number."""
        self._execute(
            "INSERT OR REPLACE INTO steps VALUES (?, ?, ?)",
            (head.step, *self._sealed("steps", head.step, head, detail)),
        )

    def final(self, head: StepHead, detail: StepDetail) -> None:
        """Store the state after the last step."""
        self._execute("INSERT OR REPLACE INTO final VALUES (1, ?, ?)", self._sealed("final", 1, head, detail))

    def _sealed(self, table: str, key: int, head: StepHead, detail: StepDetail) -> tuple[bytes, bytes]:
        return seal(f"{table}.head", key, self._encode(head)), seal(f"{table}.detail", key, self._encode(detail))

    def events(self, events: Sequence[Event]) -> None:
        """Store events, in order."""
        rows = [
            (number, seal("events", number, self._encode(event)))
            for event, number in zip(events, self._events, strict=False)
        ]
        for row in rows:
            self._execute("INSERT INTO events VALUES (?, ?)", row)

    def forget_details(self, first: int, last: int, every: int) -> None:
        """Drop the details of steps ``first`` to ``last``, but for each ``every``-th."""
        self._execute(
            "UPDATE steps SET detail = NULL WHERE step BETWEEN ? AND ? AND step % ? != 0 AND detail IS NOT NULL",
            (first, last, every),
        )

    def begin(self) -> None:
        """Start a transaction."""
        self._execute("BEGIN")

    def commit(self) -> None:
        """Hand the transaction to the operating system."""
        self._execute("COMMIT")

    def close(self) -> None:
        """Fold the log into the database and close it."""
        self._execute("PRAGMA busy_timeout=100")  # a reader is not waited for
        self._execute("PRAGMA wal_checkpoint(TRUNCATE)")
        with contextlib.suppress(sqlite3.OperationalError):  # somebody is reading it: then the log stays beside it
            self._connection.execute("PRAGMA journal_mode=DELETE")
        self._connection.close()

    def abandon(self) -> None:
        """Let go of a connection that was inherited through fork."""
        _orphans.append(self._connection)

    def _execute(self, statement: str, values: Sequence[Any] = ()) -> None:
        if self._refused:
            return
        try:
            self._connection.execute(statement, values)
        except sqlite3.OperationalError as error:
            if self.on_error is None:
                raise
            self._refused = True
            self.on_error(error)


def _beginning(facts: dict[str, Any]) -> bytes:
    """Return the bytes of a database that holds the leg's facts and no step."""
    connection = sqlite3.connect(":memory:")
    connection.executescript(f"PRAGMA application_id={APPLICATION_ID}; PRAGMA user_version={SCHEMA_VERSION}; {_SCHEMA}")
    rows = [(key, seal("meta", key, msgspec.json.encode(value))) for key, value in facts.items()]
    connection.executemany("INSERT INTO meta VALUES (?, ?)", rows)
    connection.commit()
    content = connection.serialize()
    connection.close()
    return content


def _claim(folder: Path, leg: int, rank: int, content: bytes) -> Path:
    """Put the leg's file in place whole, under the next free name."""
    draft = folder / f"{DRAFT}{os.getpid()}"
    draft.write_bytes(content)
    try:
        for process in itertools.count():
            path = folder / leg_name(leg, rank, process)
            try:
                os.link(draft, path)
            except FileExistsError:
                continue
            except OSError:  # a file system without hard links
                if path.exists():
                    continue
                draft.rename(path)
            return path
    finally:
        draft.unlink(missing_ok=True)
    raise AssertionError
