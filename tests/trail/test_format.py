"""The trail's file: its form by golden values, strict reading, and what is kept."""

import contextlib
import random
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from bitproof import fingerprint
from bitproof.errors import BitproofError, TrailCorruptError, TrailNotFoundError, TrailVersionError
from bitproof.trail.file import LegWriter, leg_name, seal, unseal
from bitproof.trail.journal import KEEP_LATEST
from bitproof.trail.reader import Leg, _Heads, is_trail, next_leg, read_trail
from bitproof.trail.records import (
    SCHEMA_VERSION,
    Event,
    Layout,
    MicroHead,
    StepDetail,
    StepHead,
    TensorRow,
    pack_digests,
    unpack_digests,
)

LAYOUT = Layout("weights", ("Net/bias", "Net/weight"), ("float32[2]", "float32[2, 3]"))


GOLDEN_LAYOUT = (
    "93a77765696768747392a84e65742f62696173aa4e65742f77656967687492aa666c6f617433325b325dad666c6f617433325b322c20335d"
)
GOLDEN_HEAD = "990282a77765696768747306a56261746368cffffffffffffffffe919814c4100200000000000000030000000000000092020716cb3ff0000000000000c0c08081a5746f7263680581a5746f7263680601c3cb3fe0000000000000cb3fc0000000000000"
GOLDEN_DETAIL = 1362626169572096659
GOLDEN_EVENT = "960301a47365656481a47365656401a6612e70793a31c0"
GOLDEN_SEAL = "1dccba8e4fe97d27616263"


def head(step: int) -> StepHead:
    """A step by a fixed rule."""
    micro = MicroHead(10 * step, pack_digests([step, step + 1]), [step, 7], 11 * step, 0.5 * step, None)
    roots = {"weights": 3 * step, "batch": 2**64 - step}
    return StepHead(step, roots, [micro], {"torch": 5}, {"torch": 6}, 1, step == 2, 0.25 * step, 0.125)


def detail(step: int) -> StepDetail:
    """Its tensors by a fixed rule."""
    row = TensorRow(1, pack_digests([step, 2**63 + step]), bytes(range(48)))
    return StepDetail([row], [], [], [None], [("torch", 5, b"state")])


def write(folder: Path, count: int = 3, *, events: bool = True, close: bool = True) -> Path:
    """Write a leg by a fixed rule."""
    writer = LegWriter(folder, 1, 0, {"world_size": 1, "environment": {"torch.threads": 2}})
    writer.layout(1, LAYOUT)
    for step in range(1, count + 1):
        writer.step(head(step), detail(step))
    if events:
        writer.events([Event(0, 0, "seed", {"seed": 1}, "train.py:3"), Event(count, 0, "ended", {}, None)])
    writer.final(head(count + 1), detail(count + 1))
    if close:
        writer.close()
    return writer.path


def contents(leg: Leg) -> Any:
    """All that a reader gives of a leg."""
    details = [leg.detail(step) for step in range(1, len(leg.steps) + 1)]
    final = leg.final_detail()
    facts = {key: value for key, value in leg.meta.items() if key != "pid"}
    return (facts, leg.steps, leg.final, leg.events, details, final, leg.generator_state("torch", 5))


# --- golden values ---------------------------------------------------------------------------------------------------


def test_golden_records() -> None:
    """The encoded records keep their bytes; if they change, ``SCHEMA_VERSION`` must too."""
    encode = msgspec.msgpack.Encoder().encode
    assert SCHEMA_VERSION == 1
    assert encode(LAYOUT).hex() == GOLDEN_LAYOUT
    assert encode(head(2)).hex() == GOLDEN_HEAD
    assert fingerprint.digest_bytes(encode(detail(2))) == GOLDEN_DETAIL
    assert encode(Event(3, 1, "seed", {"seed": 1}, "a.py:1")).hex() == GOLDEN_EVENT
    assert seal("steps.head", 2, b"abc").hex() == GOLDEN_SEAL


def test_golden_schema(tmp_path: Path) -> None:
    """The tables, the application's number and the facts about the leg keep their form."""
    path = write(tmp_path / "a.trail")
    assert path.name == "leg-001.rank-000.leg"
    assert path.read_bytes()[:16] == b"SQLite format 3\0"
    connection = sqlite3.connect(path)
    tables = [row[0] for row in connection.execute("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY name")]
    assert tables == [
        "CREATE TABLE events (id INTEGER PRIMARY KEY, event BLOB NOT NULL)",
        "CREATE TABLE final (id INTEGER PRIMARY KEY CHECK (id = 1), head BLOB NOT NULL, detail BLOB NOT NULL)",
        "CREATE TABLE layouts (id INTEGER PRIMARY KEY, layout BLOB NOT NULL)",
        "CREATE TABLE meta (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID",
        "CREATE TABLE steps (step INTEGER PRIMARY KEY, head BLOB NOT NULL, detail BLOB)",
    ]
    assert connection.execute("PRAGMA application_id").fetchone() == (0x62707266,)
    assert connection.execute("PRAGMA user_version").fetchone() == (1,)
    facts = dict(connection.execute("SELECT key, value FROM meta"))
    connection.close()
    assert set(facts) == {"schema", "algorithms", "leg", "rank", "pid", "world_size", "environment"}
    assert unseal("meta", "algorithms", facts["algorithms"]) == b'{"cpu":"xxh3-64","other":"mad64-1"}'


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """Heads, details, events, facts and the final state come back as they were given."""
    write(tmp_path / "a.trail")
    trail = read_trail(tmp_path / "a.trail")
    (leg,) = trail.legs
    assert leg.steps == [head(step) for step in (1, 2, 3)]
    assert leg.final == head(4)
    assert [event.kind for event in leg.events] == ["seed", "ended"]
    assert (leg.number, leg.rank, leg.world_size, leg.ended) == (1, 0, 1, "ended")
    assert leg.environment == {"torch.threads": 2}
    found = leg.detail(2)
    assert found is not None
    assert found.facets["weights"].digests == (2, 2**63 + 2)
    assert found.facets["weights"].by_name()["Net/weight"] == ("float32[2, 3]", 2**63 + 2, bytes(range(24, 48)))
    assert leg.generator_state("torch", 5) == b"state"
    assert leg.generator_state("torch", 6) is None


def test_a_final_state_that_steps_followed_does_not_count(tmp_path: Path) -> None:
    """The state after the last step is given only if it was written after the last step."""
    writer = LegWriter(tmp_path / "a.trail", 1, 0, {})
    writer.layout(1, LAYOUT)
    writer.step(head(1), detail(1))
    writer.final(head(2), detail(2))
    writer.step(head(2), detail(2))
    writer.close()
    leg = read_trail(tmp_path / "a.trail").legs[0]
    assert leg.final is None
    assert leg.final_detail() is None


@pytest.mark.parametrize("count", [0, 1, 2, 255, 256, 257])
def test_digests_are_packed(count: int) -> None:
    """Packing digests and unpacking them gives them back, also the largest."""
    digests = [2**64 - 1 - i for i in range(count)]
    assert unpack_digests(pack_digests(digests)) == tuple(digests)


def test_a_seal_belongs_to_its_place() -> None:
    """A sealed value is refused in another row, in another table, cut, or of another type."""
    sealed = seal("steps.head", 2, b"abc")
    assert unseal("steps.head", 2, sealed) == b"abc"
    for table, key, value in [("steps.head", 3, sealed), ("events", 2, sealed), ("steps.head", 2, sealed[:-1])]:
        assert unseal(table, key, value) is None
    for value in (b"", b"1234567", None, 5, "text"):
        assert unseal("steps.head", 2, value) is None


def test_files_of_one_rank_do_not_overwrite_each_other(tmp_path: Path) -> None:
    """A second process with the same rank takes the next name."""
    names = [write(tmp_path / "a.trail").name for _ in range(3)]
    assert names == [leg_name(1, 0, process) for process in (0, 1, 2)]
    assert names[1] == "leg-001.rank-000.process-2.leg"
    assert next_leg(tmp_path / "a.trail") == 2
    assert len(read_trail(tmp_path / "a.trail").legs) == 1


# --- strict reading --------------------------------------------------------------------------------------------------


def test_there_is_no_trail(tmp_path: Path) -> None:
    """A missing folder, a file, and a folder without legs each say what is there, and what to do."""
    with pytest.raises(TrailNotFoundError, match=r"no trail at .*nothing: there is nothing there\. Record one with"):
        read_trail(tmp_path / "nothing")
    (tmp_path / "file").touch()
    with pytest.raises(TrailNotFoundError, match="a trail is a folder, and this is a file"):
        read_trail(tmp_path / "file")
    (tmp_path / "folder" / "notes").mkdir(parents=True)
    (tmp_path / "folder" / "leg-1.leg").touch()
    with pytest.raises(TrailNotFoundError, match=r"the folder holds no \.leg file"):
        read_trail(tmp_path / "folder")


@pytest.mark.parametrize(
    "content", [b"", b"SQLite format 3\0", bytes(4096), b"not a database, and long enough to be read as one" * 100]
)
def test_what_is_no_database_is_refused(tmp_path: Path, content: bytes) -> None:
    """An empty file, a cut header, zeros and text are damaged trails."""
    path = tmp_path / "a.trail" / leg_name(1, 0, 0)
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(TrailCorruptError, match=r"leg-001\.rank-000\.leg is damaged"):
        read_trail(path.parent)


def test_another_programs_database_is_refused(tmp_path: Path) -> None:
    """A database that bitproof did not write is no trail."""
    path = tmp_path / "a.trail" / leg_name(1, 0, 0)
    path.parent.mkdir()
    connection = sqlite3.connect(path)
    connection.executescript("PRAGMA user_version=1; CREATE TABLE meta (key TEXT, value BLOB)")
    connection.close()
    with pytest.raises(TrailCorruptError, match="it holds no trail"):
        read_trail(path.parent)


@pytest.mark.parametrize(("version", "word"), [(SCHEMA_VERSION + 1, "newer"), (SCHEMA_VERSION - 1, "older")])
def test_another_version_is_refused(tmp_path: Path, version: int, word: str) -> None:
    """A trail in a newer or older form names both versions."""
    path = write(tmp_path / "a.trail")
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version={version}")
    connection.close()
    with pytest.raises(
        TrailVersionError,
        match=rf"version {version} of the trail format, and this bitproof reads version 1: it is {word}",
    ):
        read_trail(path.parent)


def test_another_algorithm_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trail with fingerprints of another kind names both."""
    monkeypatch.setattr(fingerprint, "HOST_ALGORITHM", "md5")
    path = write(tmp_path / "a.trail")
    with pytest.raises(
        TrailVersionError, match=r"another algorithm: expected .*xxh3-64.*, found .*md5.*record the run"
    ):
        read_trail(path.parent)


@pytest.mark.parametrize("step", [1, 2])
def test_missing_steps_are_refused(tmp_path: Path, step: int) -> None:
    """A trail in which a step before the last is missing is damaged."""
    path = write(tmp_path / "a.trail")
    connection = sqlite3.connect(path)
    connection.execute("DELETE FROM steps WHERE step = ?", (step,))
    connection.commit()
    connection.close()
    with pytest.raises(TrailCorruptError, match=r"steps are missing: expected 1 to 2, found [12] to 3"):
        read_trail(path.parent)


def test_a_trail_that_is_read_lazily_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that are read when they are asked for are those that are read at once; damage is named where it is met."""
    monkeypatch.setattr(_Heads, "_AT_ONCE", 2)
    path = write(tmp_path / "a.trail", 5)
    whole, leg = read_trail(path.parent).legs[0], read_trail(path.parent, lazily=True).legs[0]
    assert list(leg.steps) == whole.steps
    assert (leg.steps[-1], leg.steps[1:4], leg.final, leg.events) == (
        whole.steps[-1],
        whole.steps[1:4],
        whole.final,
        whole.events,
    )
    with pytest.raises(IndexError):
        leg.steps[5]
    connection = sqlite3.connect(path)
    connection.execute("UPDATE steps SET head = x'00' WHERE step = 1")
    connection.commit()
    late = read_trail(path.parent, lazily=True).legs[0]
    assert late.steps[2:] == whole.steps[2:]
    with pytest.raises(TrailCorruptError, match=r"steps.head 1 has changed"):
        late.steps[1]
    connection.execute("DELETE FROM steps WHERE step = 3")
    connection.commit()
    connection.close()
    with pytest.raises(TrailCorruptError, match="steps are missing: expected 1 to 4, found 1 to 5"):
        read_trail(path.parent, lazily=True)


def test_a_missing_layout_is_refused(tmp_path: Path) -> None:
    """A step whose names are missing is damaged, and says so when it is looked at."""
    path = write(tmp_path / "a.trail")
    connection = sqlite3.connect(path)
    connection.execute("DELETE FROM layouts")
    connection.commit()
    connection.close()
    with pytest.raises(TrailCorruptError, match="layout 1"):
        read_trail(path.parent).legs[0].detail(1)


@pytest.mark.parametrize("value", ["x'00'", "NULL", "5", "'text'", "zeroblob(100)"])
@pytest.mark.parametrize(
    ("table", "column"), [("steps", "head"), ("steps", "detail"), ("meta", "value"), ("events", "event")]
)
def test_values_of_another_kind_are_refused(tmp_path: Path, table: str, column: str, value: str) -> None:
    """A value that is not what was written is damage, whatever its type."""
    if value == "NULL":
        value = "zeroblob(0)"
    path = write(tmp_path / "a.trail")
    connection = sqlite3.connect(path)
    connection.execute(f"UPDATE {table} SET {column} = {value}")  # the test's own words
    connection.commit()
    connection.close()
    with pytest.raises(TrailCorruptError, match="has changed since it was written"):
        contents(read_trail(path.parent).legs[0])


def test_a_cut_file_is_refused(tmp_path: Path) -> None:
    """Cut at any length, a trail is refused with a clear error."""
    path = write(tmp_path / "a.trail", 40)
    whole = path.read_bytes()
    rng = random.Random(5)
    lengths = {1, 15, 16, 99, 100, 4095, 4096, 4097, len(whole) - 1, *(rng.randrange(len(whole)) for _ in range(60))}
    for length in sorted(lengths):
        path.write_bytes(whole[:length])
        with pytest.raises(BitproofError):
            contents(read_trail(path.parent).legs[0])


def test_flipped_bits_are_refused_or_change_nothing(tmp_path: Path) -> None:
    """400 single flipped bits, each in a fresh copy: an error of ours, or the very content that was written."""
    path = write(tmp_path / "a.trail", 20)
    whole = path.read_bytes()
    expected = contents(read_trail(path.parent).legs[0])
    rng = random.Random(3)
    refused = 0
    for _ in range(400):
        damaged = bytearray(whole)
        damaged[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        for end in ("-wal", "-shm", "-journal"):
            path.with_name(path.name + end).unlink(missing_ok=True)
        try:
            found = contents(read_trail(path.parent).legs[0])
        except BitproofError:
            refused += 1
        else:
            assert found == expected
    assert refused > 50


def test_texts_that_are_no_texts_any_more_are_refused(tmp_path: Path) -> None:
    """The high bit of each byte of every key and of the schema: no text in UTF-8 is left, and the trail is damaged."""
    path = write(tmp_path / "a.trail", 3)
    whole = path.read_bytes()
    expected = contents(read_trail(path.parent).legs[0])
    with contextlib.closing(sqlite3.connect(path)) as connection:
        texts = [row[0] for row in connection.execute("SELECT key FROM meta UNION SELECT sql FROM sqlite_master")]
    places = {
        i for text in filter(None, texts) for at in [whole.find(text.encode())] for i in range(at, at + len(text))
    }
    assert len(places) > 400
    kinds = set()
    for place in places:
        damaged = bytearray(whole)
        damaged[place] ^= 0x80
        path.write_bytes(damaged)
        try:
            assert contents(read_trail(path.parent).legs[0]) == expected
        except BitproofError as error:
            kinds.add(type(error))
    assert kinds == {TrailCorruptError}


def test_flipped_bits_in_the_log_are_refused_or_change_nothing(tmp_path: Path) -> None:
    """The same for a trail whose writer was killed: what the log holds is not dropped in silence either."""
    path = write(tmp_path / "a.trail", 20, close=False)
    log = path.with_name(path.name + "-wal")
    copy = tmp_path / "b.trail"
    copy.mkdir()
    whole, base = log.read_bytes(), path.read_bytes()

    def read(damaged: bytes) -> Any:
        for old in copy.iterdir():
            old.unlink()
        (copy / path.name).write_bytes(base)
        (copy / log.name).write_bytes(damaged)
        return contents(read_trail(copy).legs[0])

    expected = read(whole)
    rng = random.Random(4)
    refused = 0
    for _ in range(200):
        damaged = bytearray(whole)
        # Not in the last commit: there a flip looks like a kill in the middle of a write, and the step is not counted.
        damaged[rng.randrange(len(whole) - 4 * 4120)] ^= 1 << rng.randrange(8)
        try:
            found = read(bytes(damaged))
        except BitproofError:
            refused += 1
        else:
            assert found == expected
    assert refused > 100


def test_a_log_that_a_kill_has_cut(tmp_path: Path) -> None:
    """A log cut at any length, as by a kill in the middle of a write, gives a whole number of steps."""
    path = write(tmp_path / "a.trail", 20, close=False)
    log = path.with_name(path.name + "-wal")
    whole, base = log.read_bytes(), path.read_bytes()
    copy = tmp_path / "b.trail"
    copy.mkdir()
    rng = random.Random(6)
    counts = []
    for length in sorted(rng.randrange(len(whole)) for _ in range(40)):
        for old in copy.iterdir():
            old.unlink()
        (copy / path.name).write_bytes(base)
        (copy / log.name).write_bytes(whole[:length])
        leg = read_trail(copy).legs[0]
        assert leg.steps == [head(step) for step in range(1, len(leg.steps) + 1)]
        counts.append(len(leg.steps))
    assert counts == sorted(counts)
    assert len(set(counts)) > 10


def test_only_a_trail_is_a_trail(tmp_path: Path) -> None:
    """A folder that holds anything else, even under a trail's names, may not be replaced."""
    trail = tmp_path / "a.trail"
    write(trail)
    assert is_trail(trail)
    (trail / "notes").mkdir()
    (trail / "notes" / "leg-001.77.json").write_text("{}")
    assert is_trail(trail)
    for name in ("notes/diary.txt", "model.leg", "weights.pt", "leg-001.rank-000.leg.bak"):
        (trail / name).touch()
        assert not is_trail(trail), name
        (trail / name).unlink()
    (trail / "leg-002.rank-000.leg").mkdir()
    assert not is_trail(trail)
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "elsewhere")
    assert not is_trail(link)


# --- retention -------------------------------------------------------------------------------------------------------


def test_details_beyond_the_latest_are_dropped(recorded: Any) -> None:
    """Of 3,000 steps the latest keep their tensors, of the others each N-th; roots stay, and the file's size is bounded."""
    net = nn.Linear(40, 1)
    sizes = []

    def train() -> None:
        optimizer = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9)
        for step in range(3_000):
            net(torch.ones(1, 40)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            if step in {1_499, 2_999}:
                sizes.append(sum(path.stat().st_size for path in recorded.path.iterdir()))

    leg = recorded.run(train)
    assert len(leg.steps) == 3_000
    assert all(one.roots.keys() >= {"weights", "gradients", "batch"} for one in leg.steps)
    kept = {step for step in range(1, 3_001) if leg.detail(step) is not None}
    assert kept >= set(range(3_001 - KEEP_LATEST, 3_001))
    assert {step for step in kept if step <= 3_000 - KEEP_LATEST - 512} == set(
        range(100, 3_000 - KEEP_LATEST - 511, 100)
    )
    closed = next(recorded.path.glob("*.leg")).stat().st_size
    assert closed < 3 * 2**20
    assert max(sizes) < 80 * 2**20
    shutil.rmtree(recorded.path)
