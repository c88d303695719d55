"""How a store behaves in use: many processes, many checkpoints, little memory, saves in the background."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from bitproof.errors import StoreFullError, StoreLockedError, UsageError
from bitproof.store import BackgroundSaver, Keep, Store, System
from bitproof.testing.crash import FullSystem
from bitproof.testing.store import same_bits


class Slow(System):
    """A disk whose writes wait until they are let go."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.writing = threading.Event()

    def write(self, descriptor: int, data: memoryview) -> int:
        """Write when told to."""
        self.writing.set()
        assert self.go.wait(60)
        return super().write(descriptor, data)


def in_child(action: Callable[[], object]) -> int:
    """Run something in a forked child; return its exit status."""
    child = os.fork()
    if child == 0:
        try:
            action()
        except BaseException:  # noqa: BLE001
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_second_process_is_told_who_writes(tmp_path: Path) -> None:
    """Another process on the same folder is refused with pid, host and time; it may read; and write later."""
    code = (
        "import sys, torch\nfrom bitproof.store import Store\nfrom bitproof.errors import StoreLockedError\n"
        "store = Store(sys.argv[1])\nprint('step', store.latest().step)\n"
        "try:\n    print('saved', store.save(b'', {'w': torch.ones(1)}, step=2).sequence)\n"
        "except StoreLockedError as error:\n    print(error)\n"
    )
    with Store(tmp_path) as store:
        store.save(b"", {"w": torch.zeros(1)}, step=1)
        run = [sys.executable, "-c", code, str(tmp_path)]
        said = subprocess.run(run, capture_output=True, text=True, check=True).stdout.splitlines()
        assert said[0] == "step 1"
        assert f"is being written by process {os.getpid()} on {os.uname().nodename} since 2" in said[1]
    assert in_child(lambda: Store(tmp_path).save(b"", {"w": torch.ones(1)}, step=2)) == 0
    latest = Store(tmp_path).latest()
    assert latest is not None
    assert latest.step == 2


def test_a_killed_writer_holds_nothing(tmp_path: Path) -> None:
    """A writer that was killed leaves no lock, also when a child that it forked outlives it."""
    ready, release = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        Store(tmp_path).save(b"", {"w": torch.zeros(1)}, step=1)
        if os.fork() == 0:
            os.write(ready[1], b"!")
            os.read(release[0], 1)
            os._exit(0)
        time.sleep(60)
    os.read(ready[0], 1)
    with Store(tmp_path) as store, pytest.raises(StoreLockedError, match=f"process {child} "):
        store.save(b"", {"w": torch.zeros(1)}, step=2)
    os.kill(child, 9)
    os.waitpid(child, 0)
    with Store(tmp_path) as store:
        assert store.save(b"", {"w": torch.zeros(1)}, step=2).sequence == 2
    os.write(release[1], b"!")


def test_a_forked_child_cannot_write_as_its_parent(tmp_path: Path) -> None:
    """The right to write is not inherited."""
    with Store(tmp_path) as store:
        store.save(b"", {"w": torch.zeros(1)}, step=1)
        assert in_child(lambda: store.save(b"", {"w": torch.ones(1)}, step=2)) == 1
        assert [commit.step for commit in store.checkpoints()] == [1]
        store.save(b"", {"w": torch.ones(1)}, step=2)


def test_a_reader_in_another_process_never_fails_while_one_writes_and_prunes(tmp_path: Path) -> None:
    """100 saves that prune all but one, read all the while: every read is whole and none goes backwards."""

    def read() -> None:
        reader, step = Store(tmp_path), 0
        while step < 100:
            latest = reader.latest()
            assert latest is not None
            assert latest.step >= step
            step = latest.step
            assert latest.tensors["w"].eq(step).all()
        assert reader.problems == []

    with Store(tmp_path) as store:
        store.save(b"", {"w": torch.full((100,), 1)}, step=1)
        child = os.fork()
        if child == 0:
            try:
                read()
            except BaseException as error:  # noqa: BLE001
                print(repr(error), file=sys.stderr, flush=True)
                os._exit(1)
            os._exit(0)
        for step in range(2, 101):
            store.save(b"", {"w": torch.full((100,), step)}, step=step, keep=Keep(1))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def anonymous() -> int:
    """Return this process's anonymous memory in bytes."""
    fields = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["RssAnon"].split()[0]) * 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's /proc")
def test_loading_needs_no_second_copy(tmp_path: Path) -> None:
    """Loading 10 tensors of 16 MB into existing ones takes at most 1.1 × the largest in anonymous memory."""
    tensors = {f"{i}": torch.full((4_000_000,), float(i)) for i in range(10)}
    with Store(tmp_path) as store:
        store.save(b"", tensors, step=1)
        for tensor in tensors.values():
            tensor.zero_()
        checkpoint = store.open(1)
        before, peak, done = anonymous(), 0, threading.Event()

        def watch() -> None:
            nonlocal peak
            while not done.is_set():
                peak = max(peak, anonymous())
                time.sleep(0.001)

        thread = threading.Thread(target=watch)
        thread.start()
        checkpoint.load_into(tensors)
        done.set()
        thread.join()
    print(f"peak {(peak - before) / 1e6:.1f} MB above what was there, largest tensor 16 MB, state 160 MB")
    assert peak - before <= 1.1 * 16e6
    assert all(tensor.eq(int(name)).all() for name, tensor in tensors.items())


def test_a_thousand_checkpoints_stay_quick(tmp_path: Path) -> None:
    """With 1,000 checkpoints, a fresh store takes 20 ms to find the latest and 200 ms to list all (processor time, best of five)."""

    class Quick(System):
        def fsync(self, descriptor: int) -> None:
            pass

    tensors = {f"layer.{i}.weight": torch.zeros(10) for i in range(20)}
    with Store(tmp_path, system=Quick()) as store:
        for step in range(1000):
            tensors["layer.3.weight"].fill_(step)
            store.save(b"{}", tensors, step=step, facts={"loss": 1.0})
    latest, listing = [], []
    for _ in range(5):
        with Store(tmp_path) as store:
            start = time.process_time()
            assert store.latest() is not None
            latest.append(time.process_time() - start)
            start = time.process_time()
            assert len(store.checkpoints()) == 1000
            listing.append(time.process_time() - start)
    print(f"1,000 checkpoints: latest {min(latest) * 1e3:.1f} ms, list {min(listing) * 1e3:.1f} ms")
    assert min(latest) <= 0.020
    assert min(listing) <= 0.200


def test_a_background_save_holds_exactly_one_step(tmp_path: Path) -> None:
    """40 tensors, facts and a document that all change at once after save returns: the checkpoint has none of it."""
    tensors = {f"{i}": torch.full((10_000,), 5) for i in range(40)}
    facts = {"nested": [5, {"step": 5}]}
    slow = Slow()
    store = Store(tmp_path, system=slow)
    with BackgroundSaver(store) as saver:
        assert saver.save(b"5", tensors, step=5, facts=facts)
        assert slow.writing.wait(60)
        for tensor in tensors.values():
            tensor.fill_(6)
        facts["nested"][1]["step"] = 6  # type: ignore[index]
        slow.go.set()
        saver.wait()
        found = store.open(5)
        assert all(found.tensors[name].eq(5).all() for name in tensors)
        assert found.facts["nested"] == [5, {"step": 5}]
    store.close()


def test_the_next_save_waits_or_is_skipped(tmp_path: Path) -> None:
    """One save is in flight: by choice, the next one says that it was skipped, or waits for its turn."""
    slow = Slow()
    with Store(tmp_path, system=slow) as store, BackgroundSaver(store, busy="skip") as saver:
        assert saver.save(b"", {"w": torch.ones(3)}, step=1)
        assert not saver.save(b"", {"w": torch.ones(3)}, step=2)
        slow.go.set()
        saver.wait()
        assert saver.save(b"", {"w": torch.ones(3)}, step=3)
        saver.wait()
        assert [commit.step for commit in store.checkpoints()] == [1, 3]
    slow.go.clear()
    with Store(tmp_path, system=slow) as store, BackgroundSaver(store, busy="wait") as saver:
        assert saver.save(b"", {"w": torch.zeros(3)}, step=4)
        threading.Timer(0.2, slow.go.set).start()
        assert saver.save(b"", {"w": torch.ones(3)}, step=5)
        saver.wait()
        assert [commit.step for commit in store.checkpoints()] == [1, 3, 4, 5]
        assert saver.last is not None
        assert saver.last.step == 5


def test_an_error_in_the_background_reaches_the_loop(tmp_path: Path) -> None:
    """A full disk is raised at the next check, save and close, once; beside the loop's own error it is a note."""
    for ask in ("check", "save", "wait", "close"):
        with Store(tmp_path / ask, system=FullSystem(0)) as store:
            saver = BackgroundSaver(store)
            saver.save(b"", {"w": torch.ones(3)}, step=1)
            while saver.busy:
                time.sleep(0.001)
            with pytest.raises(StoreFullError, match="No space left on device"):
                saver.save(b"", {}, step=2) if ask == "save" else getattr(saver, ask)()
            saver.close()

    def loop(store: Store) -> None:
        with BackgroundSaver(store) as saver:
            saver.save(b"", {"w": torch.ones(3)}, step=1)
            raise ValueError("the loop's own")

    with Store(tmp_path / "loop", system=FullSystem(0)) as store:
        with pytest.raises(ValueError, match="the loop's own") as raised:
            loop(store)
        assert "the last save in the background had failed: StoreFullError" in raised.value.__notes__[0]


def test_a_program_that_ends_finishes_its_save(tmp_path: Path) -> None:
    """A program that ends without closing finishes the save in flight; and an error that nobody saw is printed."""
    code = (
        "import sys, torch\nfrom bitproof.store import BackgroundSaver, Store\nfrom bitproof.testing.crash import FullSystem\n"
        "good = BackgroundSaver(Store(sys.argv[1] + '/good'))\n"
        "full = BackgroundSaver(Store(sys.argv[1] + '/full', system=FullSystem(1000)))\n"
        "for saver in (good, full):\n    saver.save(b'', {'w': torch.ones(3_000_000)}, step=1)\n"
    )
    run = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    assert done.stderr.count("the last save in the background failed") == 1
    assert "No space left on device" in done.stderr
    latest = Store(tmp_path / "good").latest()
    assert latest is not None
    assert latest.tensors["w"].sum() == 3_000_000
    assert Store(tmp_path / "full").latest() is None


def test_buffers_are_used_again(tmp_path: Path) -> None:
    """Memory is bounded by one copy of the state: the same buffers take every snapshot, and those unused are freed."""
    with Store(tmp_path) as store, BackgroundSaver(store) as saver:
        saver.save(b"", {"a": torch.ones(3), "b": torch.ones(5)}, step=1)
        saver.wait()
        first = {name: buffer.data_ptr() for name, buffer in saver._buffers.items()}
        saver.save(b"", {"a": torch.zeros(3), "b": torch.ones(6)}, step=2)
        saver.wait()
        assert saver._buffers["a"].data_ptr() == first["a"]
        assert saver._buffers["b"].shape == (6,)
        saver.save(b"", {"a": torch.ones(8)[::2]}, step=3)
        saver.wait()
        assert set(saver._buffers) == {"a"}
        assert same_bits(store.open(3).tensors["a"], torch.ones(4))
        assert same_bits(store.open(1).tensors["b"], torch.ones(5))


def test_keep_refuses_what_would_keep_nothing() -> None:
    """At least one checkpoint is kept, and a mode is min or max."""
    with pytest.raises(UsageError, match="at least 1"):
        Keep(last=0)
    with pytest.raises(UsageError, match="'min' or 'max'"):
        Keep(mode="least")  # type: ignore[arg-type]
