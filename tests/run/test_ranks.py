"""Several ranks: each saves its own state, a save counts when all have it, and all resume from the same one."""

import errno
import os
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from run_ranks import Answer, kill_this_rank, train_ranks
from run_training import parts, train
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from typer.testing import CliRunner

from bitproof.cli.main import app
from bitproof.errors import CheckpointNotFoundError, ResumeRefusedError, RunError, RunStateError
from bitproof.run import REQUEUE_STATUS, Every, Keep, Run
from bitproof.run.agreement import Held, newest
from bitproof.run.checkpoints import go_back
from bitproof.run.ranks import folder_of, reordered_sums
from bitproof.store import Store
from bitproof.store.system import System

EVERY_STEP = Every(steps=1)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, int]]:
    """The bits that two ranks end with, which nothing interrupts and which never save."""
    answers = train_ranks(tmp_path_factory.mktemp("never") / "run")
    assert [answer.status for answer in answers] == [0, 0], answers
    assert answers[0].bits != answers[1].bits  # their generators
    return [answer.bits for answer in answers]


def steps_of(run: Path) -> list[list[int]]:
    """Return the steps of the checkpoints of both ranks."""
    return [[commit.step for commit in Store(folder_of(run, rank)).checkpoints()] for rank in (0, 1)]


def ended(answers: list[Answer], expected: list[dict[str, int]]) -> None:
    """Check that both ranks ended as those that nothing interrupted."""
    assert [answer.status for answer in answers] == [0, 0], "\n".join(answer.said for answer in answers)
    assert [answer.bits for answer in answers] == expected


@pytest.mark.parametrize("background", [True, False])
def test_ranks_resume_together_with_the_same_bits(
    tmp_path: Path, expected: list[dict[str, int]], background: bool
) -> None:
    """Killed in the middle of an epoch and of an accumulation window, both go on from the same batch."""

    def killed(_run: Run, rank: int, number: int) -> None:
        if (rank, number) == (1, 7):
            kill_this_rank()

    run = tmp_path / "run"
    first = train_ranks(run, each=killed, save_every=Every(steps=2), background=background)
    assert first[1].status == -signal.SIGKILL
    second = train_ranks(run, save_every=Every(steps=2), background=background)
    ended(second, expected)
    assert {answer.verdict for answer in second} <= {"identical", None}
    if not background:  # behind the loop, the first save may not have been done yet
        assert "resumed at step 2" in second[0].said
    assert "resumed" not in second[1].said
    assert steps_of(run)[0] == steps_of(run)[1]


def test_a_kill_between_two_ranks_commits_resumes_from_the_one_that_both_have(
    tmp_path: Path, expected: list[dict[str, int]]
) -> None:
    """Rank 1 dies when its commit of step 3 is about to get its name; rank 0 has committed step 3 by then or not."""
    run = tmp_path / "run"

    def die_at_the_third(rank: int) -> None:
        if rank == 1:
            _before_rename(run / "ranks" / "1" / "checkpoints", 3, kill_this_rank)

    first = train_ranks(run, before=die_at_the_third, save_every=EVERY_STEP, background=False)
    assert [answer.status != 0 for answer in first] == [True, True]
    assert steps_of(run) == [[1, 2, 3], [1, 2]]
    second = train_ranks(run, save_every=EVERY_STEP, background=False)
    ended(second, expected)
    assert "resumed at step 2; step 3 will be taken again" in second[0].said
    assert {answer.verdict for answer in second} == {"identical"}
    assert steps_of(run) == [[5, 6, 6], [5, 6, 6]]


def test_a_first_save_that_only_one_rank_has_counts_for_none(tmp_path: Path, expected: list[dict[str, int]]) -> None:
    """The run begins anew, and says so."""
    run = tmp_path / "run"

    def die_at_the_first(rank: int) -> None:
        if rank == 1:
            _before_rename(run / "ranks" / "1" / "checkpoints", 1, kill_this_rank)

    train_ranks(run, before=die_at_the_first, save_every=EVERY_STEP, background=False)
    assert steps_of(run) == [[1], []]
    second = train_ranks(run, save_every=EVERY_STEP)
    ended(second, expected)
    assert "was not saved by every rank; the run begins anew" in second[0].said


def test_sigterm_to_one_rank_saves_and_ends_all(tmp_path: Path, expected: list[dict[str, int]]) -> None:
    """A scheduler may signal one process only: both save at the same boundary, and exit with status 75."""

    def signalled(_run: Run, rank: int, number: int) -> None:
        if (rank, number) == (1, 5):
            signal.raise_signal(signal.SIGTERM)

    run = tmp_path / "run"
    assert [answer.status for answer in train_ranks(run, each=signalled)] == [REQUEUE_STATUS] * 2
    assert steps_of(run) == [[2], [2]]
    second = train_ranks(run)
    ended(second, expected)
    assert [answer.batches for answer in second] == [7, 7]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
@pytest.mark.parametrize("moment", ["waiting", "saving"])
def test_a_signal_after_the_ranks_agreed_is_for_the_next_boundary(
    tmp_path: Path, expected: list[dict[str, int]], moment: str, number: signal.Signals
) -> None:
    """Sent to one rank that waits for the other, or that saves already: the ranks stay together, and all answer it."""
    run = tmp_path / "run"

    def send() -> None:
        os.kill(os.getpid(), number)

    def signalled(_run: Run, rank: int, batch: int) -> None:
        if moment == "waiting" and batch == 5:
            if rank == 0:
                threading.Timer(0.2, send).start()
            else:
                time.sleep(0.6)

    def before(rank: int) -> None:
        if moment == "saving" and rank == 0:
            _before_rename(run / "checkpoints", 1, send, wait=False)

    answers = train_ranks(run, each=signalled, before=before, save_every=Every(steps=2), background=False)
    if number == signal.SIGUSR1:
        ended(answers, expected)
        return
    assert [answer.status for answer in answers] == [REQUEUE_STATUS] * 2, "\n".join(answer.said for answer in answers)
    assert len(set(map(tuple, steps_of(run)))) == 1
    ended(train_ranks(run), expected)


def test_a_save_that_one_rank_asks_for_is_done_by_all(tmp_path: Path) -> None:
    """Inside the loop, one rank's run.save() is enough."""

    def ask(run: Run, rank: int, number: int) -> None:
        if (rank, number) == (1, 4):
            run.save()

    train_ranks(tmp_path / "run", epochs=1, each=ask)
    assert steps_of(tmp_path / "run") == [[2], [2]]


def test_a_full_disk_of_one_rank_warns_on_all(tmp_path: Path, expected: list[dict[str, int]]) -> None:
    """The save counts for none, what was there stays on both, and training goes on."""
    run = tmp_path / "run"
    full = {"disk": False}

    def fill(_run: Run, rank: int, number: int) -> None:
        full["disk"] = rank == 1 and 4 <= number <= 7

    answers = train_ranks(
        run,
        before=lambda _: _refuse_writes(full),
        each=fill,
        save_every=EVERY_STEP,
        keep=Keep(last=1),
        background=False,
    )
    ended(answers, expected)
    assert "No space left" in answers[1].said
    assert "another rank could not save its part, so this save counts for none: rank 1: " in answers[0].said
    assert steps_of(run) == [[6], [6]]


def test_the_checkpoint_of_before_stays_on_all_ranks_while_one_cannot_save(tmp_path: Path) -> None:
    """Even with Keep(last=1), the newest one that all have is there when the run dies."""
    run = tmp_path / "run"
    full = {"disk": False}

    def fill(_run: Run, rank: int, number: int) -> None:
        full["disk"] = rank == 1 and number >= 3
        if number == 9:
            kill_this_rank()

    train_ranks(
        run,
        before=lambda _: _refuse_writes(full),
        each=fill,
        save_every=EVERY_STEP,
        keep=Keep(last=1),
        background=False,
    )
    assert steps_of(run) == [[1], [1]]


def test_a_damaged_part_of_one_rank_is_passed_over_by_all(tmp_path: Path, expected: list[dict[str, int]]) -> None:
    """Both go on from the newest checkpoint that is good on both."""
    run = tmp_path / "run"
    train_ranks(
        run, each=lambda _run, _rank, number: _die(number == 7), save_every=EVERY_STEP, background=False, keep=None
    )
    with Store(folder_of(run, 1)) as store:
        *earlier, last = store.checkpoints()
        new = {pack.name for pack in last.packs} - {pack.name for commit in earlier for pack in commit.packs}
        pack = store._layout.pack(new.pop())
    data = bytearray(pack.read_bytes())
    data[-1] ^= 1
    pack.write_bytes(data)
    answers = train_ranks(run, save_every=EVERY_STEP, background=False)
    ended(answers, expected)
    assert "damaged and was set aside" in answers[1].said
    assert f"resumed at step {earlier[-1].step}" in answers[0].said


def test_a_rank_whose_checkpoints_are_lost_is_refused(tmp_path: Path) -> None:
    """Beginning anew without a word would throw the others' away: each rank's steps are listed."""
    run = tmp_path / "run"
    train_ranks(run, epochs=1, save_every=EVERY_STEP)
    shutil.rmtree(run / "ranks")
    answers = train_ranks(run, save_every=EVERY_STEP)
    assert "ResumeRefusedError" in answers[0].said
    assert "rank 0: 2, 3, 3\n  rank 1: none" in answers[0].said
    assert steps_of(run)[0] == [2, 3, 3]


@pytest.mark.parametrize("legs", [1, 2])
def test_a_lost_rank_is_refused_though_one_checkpoint_is_kept(tmp_path: Path, legs: int) -> None:
    """With Keep(last=1) rank 0 has one save, as after a crash in the first: it is the run's, and is not thrown away."""
    run = tmp_path / "run"
    for epochs in range(1, legs + 1):
        train_ranks(run, epochs=epochs, save_every=Every(steps=3 if legs == 2 else 1), keep=Keep(last=1))
    before = steps_of(run)[0]
    assert len(before) == 1
    shutil.rmtree(run / "ranks" / "1")
    for _again in range(2):
        answers = train_ranks(run, epochs=3, save_every=EVERY_STEP, keep=Keep(last=1))
        assert f"rank 0: {before[0]}\n  rank 1: none" in answers[0].said
        assert steps_of(run)[0] == before


def test_another_number_of_ranks_is_refused_with_both(tmp_path: Path) -> None:
    """Each rank's state is its own; the message says how many there were, how many there are, and what to do."""
    train_ranks(tmp_path / "two", epochs=1, save_every=EVERY_STEP)
    with pytest.raises(ResumeRefusedError, match=r"saved by 2 ranks, and is resumed by 1 rank\..*bitproof export"):
        Run(tmp_path / "two", **parts())
    train(tmp_path / "one", epochs=1, save_every=EVERY_STEP)
    answers = train_ranks(tmp_path / "one")
    assert all("was saved by 1 rank, and is resumed by 2 ranks" in answer.said for answer in answers)


def test_ranks_at_different_batches_are_told(tmp_path: Path) -> None:
    """One that leaves an epoch early would save another moment than the rest."""

    def early(run: Run, rank: int, number: int) -> None:
        if (rank, number) == (0, 3):
            run._place.epoch += 1

    answers = train_ranks(tmp_path / "run", each=early)
    assert any("not at the same batch boundary" in answer.said and "epoch 0 and 1" in answer.said for answer in answers)


def test_several_ranks_without_a_process_group_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They could not agree on a checkpoint; the message says what to call first."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RunError, match=r"one of 2 ranks.*init_process_group\(\) before Run"):
        Run(tmp_path, **parts())
    assert not list(tmp_path.iterdir())


def test_sharded_parameters_are_refused_at_once(tmp_path: Path) -> None:
    """Not at the first save, an hour later: by name, with what to do instead."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        model = torch.nn.Linear(2, 2)
        fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
        with pytest.raises(RunStateError, match=r"\['weight'\] is a .*DTensor.*save with torch.distributed.checkpoint"):
            Run(tmp_path, model=model)
    finally:
        torch.distributed.destroy_process_group()


def test_sums_that_a_resume_reorders_are_named() -> None:
    """With three ranks DistributedDataParallel adds in another order after its first step; with two there is one order."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        free, kept = (
            DistributedDataParallel(torch.nn.Linear(1, 1), find_unused_parameters=kept) for kept in (False, True)
        )
        told = reordered_sums({"net": free}, 3)
        assert told is not None
        assert told.startswith("net: DistributedDataParallel adds gradients in another order")
        assert [reordered_sums({"net": kept}, 3), reordered_sums({"net": free}, 2)] == [None, None]
    finally:
        torch.distributed.destroy_process_group()


def test_the_commands_look_at_every_rank(tmp_path: Path) -> None:
    """Verify reads, gc clears and restore goes back on all; a step that one lacks is refused."""
    run = tmp_path / "run"
    train_ranks(run, epochs=1, save_every=EVERY_STEP, keep=None)
    said = CliRunner().invoke(app, ["verify", str(run)])
    assert said.output == "8 checkpoints, each as it was written\n"
    (run / "ranks" / "1" / "objects" / ".tmp-pack").write_bytes(b"left")
    assert CliRunner().invoke(app, ["gc", str(run)]).output.startswith("removed 1 files")
    assert go_back(run, 2).step == 2
    assert [steps[-1] for steps in steps_of(run)] == [2, 2]
    answers = train_ranks(run, epochs=1)
    assert "resumed at step 2" in answers[0].said
    with pytest.raises(CheckpointNotFoundError, match=r"2 ranks have no checkpoint of step 9 in common"):
        go_back(run, 9)
    commit = max((run / "ranks" / "1" / "checkpoints").iterdir())
    commit.write_bytes(commit.read_bytes()[:-3])
    assert CliRunner().invoke(app, ["verify", str(run)]).exit_code == 1


@pytest.mark.slow
def test_four_ranks_save_fifty_times_at_their_own_pace(tmp_path: Path) -> None:
    """Whichever comes first at a save, all have the same checkpoints at the end, and every one is whole."""

    def dawdle(_run: Run, rank: int, number: int) -> None:
        time.sleep((7 * rank + 3 * number) % 11 / 1000)

    run = tmp_path / "run"
    answers = train_ranks(run, world=4, epochs=34, each=dawdle, save_every=EVERY_STEP, keep=Keep(last=2))
    assert [answer.status for answer in answers] == [0] * 4, answers[0].said
    assert [answer.step for answer in answers] == [51] * 4
    stores = [Store(folder_of(run, rank)) for rank in range(4)]
    names = [[commit.facts["save"] for commit in store.checkpoints()] for store in stores]
    assert names == [names[0]] * 4
    assert [store.verify() for store in stores] == [[]] * 4


@pytest.mark.parametrize(
    ("all_ranks", "found"),
    [
        ([Held([], []), Held([], [])], None),
        ([Held(["a", "b"], [1, 2], 2), Held(["a", "b"], [1, 2], 2)], "b"),
        ([Held(["a", "b"], [1, 2], 2), Held(["a"], [1], 2)], "a"),
        ([Held(["a-1"], [1], 2, only=True), Held([], [])], None),
        ([Held([], []), Held(["a-1"], [1], 3, only=True), Held(["a-1"], [1], 3, only=True)], None),
        ([Held(["a", "b", "a"], [1, 2, 1], 2), Held(["a", "b"], [1, 2], 2)], "a"),
        ([Held(["a", "b", "c"], [1, 2, 3], 2), Held(["a"], [1], 2, damaged=True)], "a"),
    ],
)
def test_the_newest_that_all_have(all_ranks: list[Held], found: str | None) -> None:
    """Pure: what each rank has decides; one that was gone back to is the newest."""
    assert newest("run", all_ranks) == found


@pytest.mark.parametrize(
    "all_ranks",
    [
        [Held(["a", "b"], [1, 2], 2), Held([], [])],
        [Held(["a", "b", "c"], [1, 2, 3], 2), Held(["a"], [1], 2)],
        [Held(["a-1"], [1], 2, only=True), Held([], [], damaged=True)],
        [Held(["a-4"], [9], 2, only=True), Held([], [])],
        [Held(["b-1"], [9], 2), Held([], [])],
        [Held(["a-1"], [1], 2, only=True), Held([], [], begun=False)],
        [Held(["a-1"], [1], 2, only=True), Held(["b-1"], [1], 2, only=True)],
    ],
)
def test_what_no_crash_can_leave_is_refused(all_ranks: list[Held]) -> None:
    """A rank that lacks more than one save, or any but the run's first, or whose are damaged, has lost something."""
    with pytest.raises(ResumeRefusedError, match=r"(?s)do not have the same checkpoints.*rank 1.*another folder"):
        newest("run", all_ranks)


def _die(now: bool) -> None:
    if now:
        kill_this_rank()


def _before_rename(folder: Path, count: int, action: Any, *, wait: bool = True) -> None:
    """Do something before the count-th file of a folder gets its name; wait for the other rank's first, or not."""
    rename, seen = System.rename, [0]

    def counted(system: System, source: Path, target: Path) -> None:
        seen[0] += target.parent == folder
        if target.parent == folder and seen[0] == count:
            while wait and not (folder.parents[2] / "checkpoints" / target.name).exists():
                time.sleep(0.001)  # the other rank commits first
            action()
        rename(system, source, target)

    System.rename = counted  # type: ignore[method-assign]  # in a process of its own


def _refuse_writes(full: dict[str, bool]) -> None:
    write = System.write

    def refused(system: System, descriptor: int, data: memoryview) -> int:
        if full["disk"]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(system, descriptor, data)

    System.write = refused  # type: ignore[method-assign]  # in a process of its own
