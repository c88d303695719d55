"""A leg's file: one SQLite database a process, written as the run goes.

WAL mode without fsync: every step is one commit that has reached the operating system when the call returns, so the
file survives the death of the process at any moment (not a loss of power). The log is folded into the database only
every 64 MiB and at the end, so a folder copied while it grows opens whole.
"""

import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from bitproof import fingerprint
from bitproof.trail.records import SCHEMA_VERSION, Event, Layout, StepDetail, StepHead

SUFFIX = ".leg"
_APPLICATION_ID = 0x62_70_72_66  # "bprf", shown by file(1)
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
    """

    def __init__(self, folder: Path, leg: int, rank: int, meta: dict[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = _claim(folder, leg, rank)
        self._connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        execute = self._connection.execute
        execute(f"PRAGMA application_id={_APPLICATION_ID}")
        execute(f"PRAGMA user_version={SCHEMA_VERSION}")
        execute("PRAGMA journal_mode=WAL")
        execute("PRAGMA synchronous=OFF")
        execute(f"PRAGMA wal_autocheckpoint={_FOLD_PAGES}")
        execute("BEGIN")
        for statement in _SCHEMA.split(";\n"):
            if statement.strip():
                execute(statement)
        facts = {
            "schema": SCHEMA_VERSION,
            "algorithms": {"cpu": fingerprint.HOST_ALGORITHM, "other": fingerprint.DEVICE_ALGORITHM},
            "leg": leg,
            "rank": rank,
            "pid": os.getpid(),
            **meta,
        }
        self._connection.executemany(
            "INSERT INTO meta VALUES (?, ?)", [(key, msgspec.json.encode(value)) for key, value in facts.items()]
        )
        execute("COMMIT")
        self._encode = msgspec.msgpack.Encoder().encode

    def layout(self, number: int, layout: Layout) -> None:
        """Store a layout under its number."""
        self._connection.execute("INSERT INTO layouts VALUES (?, ?)", (number, self._encode(layout)))

    def step(self, head: StepHead, detail: StepDetail) -> None:
        """Store a step, in place of an earlier row with its number."""
        self._connection.execute(
            "INSERT OR REPLACE INTO steps VALUES (?, ?, ?)", (head.step, self._encode(head), self._encode(detail))
        )

    def final(self, head: StepHead, detail: StepDetail) -> None:
        """Store the state after the last step."""
        self._connection.execute(
            "INSERT OR REPLACE INTO final VALUES (1, ?, ?)", (self._encode(head), self._encode(detail))
        )

    def events(self, events: Sequence[Event]) -> None:
        """Store events, in order."""
        self._connection.executemany("INSERT INTO events (event) VALUES (?)", [(self._encode(e),) for e in events])

    def forget_details(self, first: int, last: int, every: int) -> None:
        """Drop the details of steps ``first`` to ``last``, but for each ``every``-th."""
        self._connection.execute(
            "UPDATE steps SET detail = NULL WHERE step BETWEEN ? AND ? AND step % ? != 0", (first, last, every)
        )

    def begin(self) -> None:
        """Start a transaction."""
        self._connection.execute("BEGIN")

    def commit(self) -> None:
        """Hand the transaction to the operating system."""
        self._connection.execute("COMMIT")

    def close(self) -> None:
        """Fold the log into the database and close it."""
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._connection.execute("PRAGMA journal_mode=DELETE")
        self._connection.close()

    def abandon(self) -> None:
        """Let go of a connection that was inherited through fork."""
        _orphans.append(self._connection)


def _claim(folder: Path, leg: int, rank: int) -> Path:
    """Create the leg's file exclusively, under the next free name."""
    process = 0
    while True:
        path = folder / leg_name(leg, rank, process)
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
        except FileExistsError:
            process += 1
        else:
            return path
