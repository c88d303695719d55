"""Signals, full disks, second processes: the store stays whole, and training goes on or ends as it should."""

import errno
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from run_training import Crash, parts, train

from bitproof.errors import StoreFullError, StoreLockedError
from bitproof.run import REQUEUE_STATUS, Every, Run, SaveFailedWarning
from bitproof.store import Store
from bitproof.store.system import System


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """The bits that a run ends with which nothing interrupts."""
    return train(tmp_path_factory.mktemp("never"))[1]


@pytest.mark.parametrize("batch", [3, 4, 12])
def test_sigterm_saves_and_exits_for_a_requeue(tmp_path: Path, expected: dict[str, int], batch: int) -> None:
    """The state of the batch in which it came is saved, also inside an accumulation window; the status is 75."""

    def signalled(_run: Run, number: int) -> None:
        if number == batch:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(SystemExit) as ended:
        train(tmp_path, each=signalled)
    assert ended.value.code == REQUEUE_STATUS == 75
    left = []
    _, found = train(tmp_path, each=lambda _run, number: left.append(number))
    assert found == expected
    assert len(left) == 12 - batch


def test_sigusr1_saves_and_goes_on(tmp_path: Path, expected: dict[str, int]) -> None:
    """A warning that comes before the end of a job's time costs nothing."""

    def signalled(_run: Run, number: int) -> None:
        if number == 5:
            signal.raise_signal(signal.SIGUSR1)

    assert train(tmp_path, each=signalled)[1] == expected
    with Store(tmp_path) as store:
        assert [commit.step for commit in store.checkpoints()] == [2]


def test_earlier_handlers_are_called_and_put_back(tmp_path: Path) -> None:
    """A handler that was there before is called once the state is saved, and is there again after the run."""
    called: list[int] = []

    def earlier(_number: int, _frame: Any) -> None:
        with Store(tmp_path) as store:
            called.append(len(store.checkpoints()))

    before = signal.signal(signal.SIGUSR1, earlier)
    try:

        def signalled(_run: Run, number: int) -> None:
            if number == 2:
                signal.raise_signal(signal.SIGUSR1)
                assert called == []

        train(tmp_path, each=signalled)
        assert called == [1]
        assert signal.getsignal(signal.SIGUSR1) is earlier
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_fork_is_not_held_up_by_the_handlers(tmp_path: Path) -> None:
    """A process that was forked off a run ends of SIGTERM as any other."""
    with Run(tmp_path, **parts()):
        context = multiprocessing.get_context("fork")
        started = context.SimpleQueue()
        child = context.Process(target=_sleep, args=(started,))
        child.start()
        started.get()  # Python forgets signals that come while it forks
        child.terminate()
        child.join(20)
        assert child.exitcode == -signal.SIGTERM


def test_ctrl_c_leaves_a_whole_store(tmp_path: Path, expected: dict[str, int]) -> None:
    """Wherever it strikes, the save in flight is finished, and the run can go on."""

    def interrupted(_run: Run, number: int) -> None:
        if number == 7:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, save_every=Every(steps=1), each=interrupted)
    with Store(tmp_path) as store:
        assert store.verify() == []
        assert [commit.step for commit in store.checkpoints()] == [1, 2, 3]
    assert train(tmp_path)[1] == expected


@pytest.mark.parametrize("background", [True, False])
def test_a_full_disk_warns_and_training_goes_on(
    tmp_path: Path, expected: dict[str, int], monkeypatch: pytest.MonkeyPatch, background: bool
) -> None:
    """The checkpoints of before are untouched, no partial file stays, and later saves work again."""
    full = _fill(monkeypatch, tmp_path)

    def fill(run: Run, number: int) -> None:
        if run._saving._saver is not None:
            run._saving._saver.wait_quietly()
        full["disk"] = 4 <= number <= 5

    with pytest.warns(SaveFailedWarning, match=r"training goes on: .*No space left.*untouched"):
        _, found = train(tmp_path, save_every=Every(steps=1), keep=None, each=fill, background=background)
    assert found == expected
    with Store(tmp_path) as store:
        assert store.verify() == []
        steps = [commit.step for commit in store.checkpoints()]
        assert steps[0] == 1
        assert steps[-1] == 6
        assert store.gc().files == 0
    assert not list(tmp_path.rglob(".tmp-*"))


def test_a_full_disk_may_end_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By choice the error is raised in the loop; the checkpoint before it is good."""
    full = _fill(monkeypatch, tmp_path)

    def fill(_run: Run, number: int) -> None:
        full["disk"] = number >= 3

    with pytest.raises(StoreFullError):
        train(tmp_path, save_every=Every(steps=1), each=fill, on_save_error="raise", background=False)
    with Store(tmp_path) as store:
        assert store.verify() == []
        assert [commit.step for commit in store.checkpoints()] == [1]


def test_a_trail_that_cannot_be_written_ends_no_training(tmp_path: Path, expected: dict[str, int]) -> None:
    """Where the disk is full for the trail too, the proof of the next resume is what is lost."""

    def fill(run: Run, number: int) -> None:
        if number == 4:
            assert run._recorder._journal._writer is not None
            run._recorder._journal._writer._connection.execute("PRAGMA max_page_count=1")

    with pytest.warns(SaveFailedWarning, match=r"the trail ends at step \d.*full.*Training goes on"):
        assert train(tmp_path, each=fill)[1] == expected


@pytest.mark.slow
def test_a_signal_to_the_whole_group_spares_the_workers(tmp_path: Path) -> None:
    """A scheduler signals every process of a job: loader workers read on until the state is saved."""
    script = Path(__file__).parents[2] / "examples" / "run_digits.py"

    def start(out: Path) -> "subprocess.Popen[bytes]":
        command = [sys.executable, str(script), "--out", str(out), "--epochs", "3", "--limit", "600", "--workers", "2"]
        return subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL)

    with start(tmp_path / "once") as once:
        assert once.wait(200) == 0
    with start(tmp_path / "twice") as first:
        log = tmp_path / "twice" / "log.jsonl"
        while not log.exists() or log.read_bytes().count(b"\n") < 4:
            assert first.poll() is None
            time.sleep(0.01)
        os.killpg(first.pid, signal.SIGTERM)
        assert first.wait(200) == REQUEUE_STATUS
    done = (tmp_path / "twice" / "log.jsonl").read_bytes()
    with start(tmp_path / "twice") as second:
        assert second.wait(200) == 0
    whole = (tmp_path / "once" / "log.jsonl").read_bytes()
    assert (tmp_path / "twice" / "log.jsonl").read_bytes() == whole
    assert whole.startswith(done)
    assert len(done) < len(whole)


def test_a_signal_after_the_last_boundary_is_not_lost(tmp_path: Path) -> None:
    """It is sent again when the run is closed, to the handler of before."""
    came: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _frame: came.append(number))
    try:
        with Run(tmp_path, **parts()):
            signal.raise_signal(signal.SIGUSR1)
            assert came == []
        assert came == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_second_process_is_told_who_holds_the_run(tmp_path: Path) -> None:
    """It does not touch the folder, and the message has the first one's process id."""
    with Run(tmp_path, **parts()):
        context = multiprocessing.get_context("fork")
        answers = context.SimpleQueue()

        def second() -> None:
            try:
                Run(tmp_path, **parts())
            except StoreLockedError as error:
                answers.put(str(error))
            else:
                answers.put("it was let in")

        child = context.Process(target=second)
        child.start()
        child.join(30)
        assert f"is being written by process {os.getpid()} on " in answers.get()


def test_a_crash_in_the_loop_comes_through(tmp_path: Path) -> None:
    """Closing a run hides no error of the loop."""
    with pytest.raises(Crash):
        train(tmp_path, crash_at=1)


def _sleep(started: Any) -> None:
    started.put(None)
    for _ in range(600):
        time.sleep(0.05)


def _fill(monkeypatch: pytest.MonkeyPatch, folder: Path) -> dict[str, bool]:
    """Make writes of the store fail as on a full disk, while it is said to be."""
    full = {"disk": False}
    write = System.write

    def refused(system: System, descriptor: int, data: memoryview) -> int:
        name = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        if full["disk"] and name.startswith((str(folder / "objects"), str(folder / "checkpoints"))):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(system, descriptor, data)

    monkeypatch.setattr(System, "write", refused)
    return full
