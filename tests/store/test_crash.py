"""The crash matrix: a save and its pruning, broken at every operation of the system."""

import errno
import os
import resource
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from bitproof.errors import StoreError, StoreFullError, StoreWriteError, TornSaveError
from bitproof.store import Keep, Store, System
from bitproof.testing.crash import (
    FailingSystem,
    FullSystem,
    PowerCutSystem,
    ShortWritingSystem,
    WatchedSystem,
    kill_at,
    points,
)
from bitproof.testing.store import files_of, same_bits


def state(step: int) -> dict[str, torch.Tensor]:
    """The state at a step: one tensor changes, one does not, one changes now and then."""
    return {
        "moves": torch.full((300,), float(step)),
        "stays": torch.arange(200),
        "sometimes": torch.full((30,), step // 2, dtype=torch.bfloat16),
    }


def save(folder: Path, step: int, system: System | None = None) -> None:
    """Save the state at a step, keeping two and the best."""
    with Store(folder, system=system) as store:
        facts = {"loss": float((step * 7) % 5)}
        store.save(f"document {step}".encode(), state(step), step=step, facts=facts, keep=Keep(2, best="loss"))


def check(folder: Path, committed: int, attempted: int, where: str) -> int:
    """Resume: what is found is verified, right, and no older than the last commit; then nothing is left over."""
    with Store(folder) as store:
        latest = store.latest()
        assert latest is not None, where
        assert latest.step in {committed, attempted}, where
        assert latest.document == f"document {latest.step}".encode(), where
        expected = state(latest.step)
        assert all(same_bits(latest.tensors[name], expected[name]) for name in expected), where
        assert store.problems == [], where
        # The same step is saved again, as a resumed run does; what the crash left is replaced or removed.
        store.save(f"document {attempted}".encode(), state(attempted), step=attempted, keep=Keep(2, best="loss"))
        assert store.verify() == [], where
        needed = {f"{pack.name}.safetensors" for commit in store.checkpoints() for pack in commit.packs}
        assert {path.name for path in (folder / "objects").rglob("*.safetensors")} == needed, where
    left = [name for name in files_of(folder) if ".tmp-" in name or name == "writer.json"]
    assert left == [], where
    return latest.step


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A store in which the next save prunes two kinds of checkpoints."""
    for step in range(1, 6):
        save(tmp_path / "base", step)
    return tmp_path / "base"


@pytest.mark.parametrize("torn", [False, True])
def test_a_save_killed_at_every_operation_loses_nothing(base: Path, tmp_path: Path, *, torn: bool) -> None:
    """SIGKILL before every operation, also amid each write: resume finds the last commit or the new one, whole."""
    shutil.copytree(base, tmp_path / "count")
    operations = points(lambda system: save(tmp_path / "count", 6, system))
    found = []
    for at in range(1, len(operations) + 1):
        if torn and not operations[at - 1].startswith("write"):
            continue
        folder = tmp_path / f"{at}"
        shutil.copytree(base, folder)
        kill_at(lambda system, folder=folder: save(folder, 6, system), at, torn=torn)
        found.append(check(folder, 5, 6, f"killed at {at}: {operations[at - 1]}"))
    assert found == sorted(found)
    print(f"{len(found)} kills: {found.count(5)} found the last commit, {found.count(6)} the new one, 0 lost")


def test_a_first_save_killed_at_every_operation_leaves_an_empty_store(tmp_path: Path) -> None:
    """Before the first commit there is nothing to resume from, and the store says so instead of failing."""
    operations = points(lambda system: save(tmp_path / "count", 1, system))
    for at in range(1, len(operations) + 1):
        folder = tmp_path / f"{at}"
        kill_at(lambda system, folder=folder: save(folder, 1, system), at)
        with Store(folder) as store:
            latest = store.latest()
            assert latest is None or latest.step == 1
            assert store.problems == []
        save(folder, 1)
        check(folder, 1, 1, operations[at - 1])


def test_setting_aside_killed_at_every_operation_loses_nothing(base: Path, tmp_path: Path) -> None:
    """A resume that is killed while it sets a bad checkpoint aside is a resume that can be tried again."""
    bad = base / "checkpoints" / "000000005.json"
    bad.write_bytes(bad.read_bytes()[:-9])

    def resume(folder: Path, system: System | None = None) -> int:
        with Store(folder, system=system) as store:
            latest = store.latest()
            assert latest is not None
            return latest.step

    shutil.copytree(base, tmp_path / "count")
    operations = points(lambda system: resume(tmp_path / "count", system))
    for at in range(1, len(operations) + 1):
        folder = tmp_path / f"{at}"
        shutil.copytree(base, folder)
        kill_at(lambda system, folder=folder: resume(folder, system), at)
        assert resume(folder) == 4
        assert (folder / "quarantine" / bad.name).read_bytes() == bad.read_bytes()


def test_a_power_cut_at_every_operation_loses_nothing(base: Path, tmp_path: Path) -> None:
    """With all that was not fsynced lost, names kept or lost, resume finds the last commit or the new one, whole."""
    system = PowerCutSystem(base)
    save(base, 6, system)
    system.end()
    found = []
    for i, (point, disk) in enumerate(system.disks):
        system.restore(disk, tmp_path / f"{i}")
        found.append(check(tmp_path / f"{i}", 5, 6, point))
    assert found[-2:] == [6, 6]
    print(
        f"{len(found)} disks after a power cut: {found.count(5)} the last commit, {found.count(6)} the new one, 0 lost"
    )


@pytest.mark.parametrize("skipped", ["fsync of files", "fsync of folders"])
def test_the_power_cut_notices_a_missing_fsync(base: Path, tmp_path: Path, skipped: str) -> None:
    """Without one kind of fsync the same matrix does find lost checkpoints: it can fail."""

    class Careless(PowerCutSystem):
        def fsync(self, descriptor: int) -> None:
            if self._paths[descriptor].is_dir() != (skipped == "fsync of folders"):
                super().fsync(descriptor)

    system = Careless(base)
    save(base, 6, system)
    system.end()
    lost = 0
    for i, (point, disk) in enumerate(system.disks):
        system.restore(disk, tmp_path / f"{i}")
        try:
            found = check(tmp_path / f"{i}", 5, 6, point)
            lost += point.startswith("at the end") and found == 5
        except (AssertionError, StoreError):
            lost += 1
    assert lost > 0


def test_short_writes_are_finished(base: Path) -> None:
    """A system that writes seven bytes at a time gives the same files."""
    save(base, 6, ShortWritingSystem(7))
    assert check(base, 6, 6, "short writes") == 6


@pytest.mark.parametrize("operation", ["open", "write", "fsync", "rename", "mkdir"])
@pytest.mark.parametrize("code", [errno.EIO, errno.EXDEV])
def test_a_passing_error_is_tried_again(base: Path, operation: str, code: int) -> None:
    """An error that passes costs a moment and a note, at whichever operation it comes."""
    operations = points(lambda system: save_to_copy(base, system))
    for after in range(sum(line.startswith(operation) for line in operations)):
        folder = base.with_name(f"{after}")
        shutil.copytree(base, folder)
        system = FailingSystem(operation, code, times=1, after=after)
        with Store(folder, system=system) as store:
            store.save(b"document 6", state(6), step=6, keep=Keep(2, best="loss"))
            assert "done again (attempt 2)" in str(store.notes) or operation == "fsync", (after, operation)
        assert check(folder, 6, 6, f"{operation} {after}") == 6
        shutil.rmtree(folder)


def save_to_copy(base: Path, system: System) -> None:
    """Save into a copy of a store."""
    folder = base.with_name("copy")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(base, folder)
    save(folder, 6, system)


@pytest.mark.parametrize(
    ("operation", "code", "error"),
    [
        ("write", errno.EIO, StoreWriteError),
        ("fsync", errno.EIO, StoreWriteError),
        ("rename", errno.EXDEV, StoreWriteError),
        ("open", errno.EACCES, StoreWriteError),
        ("write", errno.ENOSPC, StoreFullError),
        ("write", errno.EDQUOT, StoreFullError),
        ("open", errno.ENOSPC, StoreFullError),
        ("fsync", errno.ENOSPC, StoreFullError),
        ("mkdir", errno.ENOSPC, StoreFullError),
    ],
)
def test_a_lasting_error_is_named_and_harms_nothing(
    base: Path, operation: str, code: int, error: type[Exception]
) -> None:
    """An error that stays is raised with its reason; the last commit is whole and no partial file is left."""
    before = files_of(base)
    with Store(base, system=FailingSystem(operation, code)) as store, pytest.raises(error) as raised:
        store.save(b"document 6", state(6), step=6, keep=Keep(2, best="loss"))
    assert os.strerror(code) in str(raised.value)
    assert "committed before are untouched" in str(raised.value)
    assert files_of(base) == before
    assert check(base, 5, 6, operation) == 5


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP, errno.ENOSYS])
def test_a_file_system_without_fsync_is_noted(base: Path, code: int) -> None:
    """Where fsync is not supported, a save works and the note says what that means."""
    with Store(base, system=FailingSystem("fsync", code)) as store:
        store.save(b"document 6", state(6), step=6)
        assert any("has no fsync" in note and "power cut" in note for note in store.notes)
    assert check(base, 6, 6, "no fsync") == 6


def test_pruning_that_fails_does_not_fail_the_save(base: Path) -> None:
    """Older checkpoints that cannot be removed are noted; the new one is committed."""
    with Store(base, system=FailingSystem("unlink", errno.EIO)) as store:
        store.save(b"document 6", state(6), step=6, keep=Keep(2, best="loss"))
        assert any("could not be removed: Input/output error" in note for note in store.notes)
    (base / "writer.json").unlink()
    assert check(base, 6, 6, "pruning") == 6


def test_a_disk_that_fills_up_at_every_byte_harms_nothing(base: Path, tmp_path: Path) -> None:
    """Whatever room is left, the save is whole or the last commit is untouched and nothing partial is left."""
    results = []
    for room in range(0, 5_000, 97):
        shutil.copytree(base, tmp_path / f"{room}")
        with Store(tmp_path / f"{room}", system=FullSystem(room)) as store:
            try:
                store.save(b"document 6", state(6), step=6)
            except StoreFullError:
                assert {k: v for k, v in files_of(tmp_path / f"{room}").items() if k != "writer.json"} == files_of(base)
                results.append(5)
            else:
                results.append(6)
        assert check(tmp_path / f"{room}", results[-1], 6, f"{room} bytes") == results[-1]
    assert results == sorted(results)
    assert set(results) == {5, 6}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 1 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting a small file system needs privileges")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_disk_that_is_really_full_harms_nothing(small_disk: Path) -> None:
    """On a file system with too little room the last commit stays, nothing partial is left, and a smaller save works."""
    with Store(small_disk / "s") as store:
        store.save(b"document 5", state(5), step=5)
        with pytest.raises(StoreFullError, match="No space left on device"):
            store.save(b"document 6", {"large": torch.rand(600_000)}, step=6)
        assert not list(small_disk.rglob(".tmp-*"))
    assert check(small_disk / "s", 5, 6, "full") == 5


def test_a_limit_on_file_size_harms_nothing(base: Path) -> None:
    """A limit on the size of files (which is a signal, by default) is a clear error."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Store(base) as store:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
        try:
            with pytest.raises(StoreFullError, match="File too large"):
                store.save(b"document 6", {"large": torch.rand(600_000)}, step=6)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert not list(base.rglob(".tmp-*"))
    assert check(base, 5, 6, "limit") == 5


def test_a_tensor_that_changes_during_the_save_is_noticed(base: Path) -> None:
    """A tensor written to by somebody else meanwhile is a torn save: refused, nothing committed."""
    tensors = state(6)

    class Meddling(WatchedSystem):
        def write(self, descriptor: int, data: memoryview) -> int:
            tensors["moves"][7] += 1
            return super().write(descriptor, data)

    with Store(base, system=Meddling()) as store, pytest.raises(TornSaveError, match=r"'moves' in .* changed while"):
        store.save(b"document 6", tensors, step=6)
    assert check(base, 5, 6, "torn") == 5


@pytest.mark.slow
def test_kills_at_random_times_lose_nothing(tmp_path: Path) -> None:
    """A process that saves 2 MB over and over, killed 40 times at any moment: 0 of 40 unreadable."""

    def run(action: Callable[[], None], seconds: float) -> None:
        child = os.fork()
        if child == 0:
            action()
            os._exit(0)
        time.sleep(seconds)
        os.kill(child, 9)
        os.waitpid(child, 0)

    def train() -> None:
        with Store(tmp_path) as store:
            latest = store.latest()
            step = latest.step if latest else 0
            while True:
                step += 1
                store.save(b"{}", {"w": torch.full((500_000,), float(step))}, step=step, keep=Keep(1))

    reached = 0
    for i in range(40):
        run(train, 0.05 + 0.01 * (i * 7 % 13))
        with Store(tmp_path) as store:
            latest = store.latest()
            assert store.problems == []
            if latest is not None:
                assert latest.step >= reached
                assert latest.tensors["w"].eq(latest.step).all()
                reached = latest.step
    print(f"40 kills, 0 lost, {reached} checkpoints")
    assert reached > 10
