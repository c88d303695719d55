"""A run goes on at the exact batch, with the exact bits."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from run_training import Crash, bits, data, learn, loader, parts, train
from torch.utils.data import DataLoader

from bitproof.data import Loader
from bitproof.data.errors import DataChangedError, NotCarriedError
from bitproof.errors import ResumeRefusedError, RunError, RunStateError, UsageError
from bitproof.run import Every, ForgottenWarning, Keep, ResumeDiffersWarning, Run
from bitproof.store import Store


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """The bits that a run ends with which nothing interrupts, and which never saves."""
    return train(tmp_path_factory.mktemp("never"))[1]


@pytest.mark.parametrize("background", [True, False])
def test_saving_every_step_and_never_end_with_the_same_bits(
    tmp_path: Path, expected: dict[str, int], background: bool
) -> None:
    """Saving changes nothing."""
    run, found = train(tmp_path, save_every=Every(steps=1), background=background)
    assert found == expected
    assert run.step == 6


@pytest.mark.parametrize("batch", [1, 5, 6, 7, 8, 12])
def test_a_crash_in_any_batch_changes_no_bit(tmp_path: Path, expected: dict[str, int], batch: int) -> None:
    """Steps and micro-steps, within an epoch and at its end: a resumed run ends as one that never crashed."""
    with pytest.raises(Crash):
        train(tmp_path, crash_at=batch, save_every=Every(steps=2))
    run, found = train(tmp_path, save_every=Every(steps=2))
    assert found == expected
    assert run.step == 6


def test_many_crashes_in_one_run(tmp_path: Path, expected: dict[str, int]) -> None:
    """A run that crashes in every third batch of every leg still ends with the same bits."""
    for _ in range(3):
        with pytest.raises(Crash):
            train(tmp_path, crash_at=3, save_every=Every(steps=1))
    assert train(tmp_path, save_every=Every(steps=1))[1] == expected


@pytest.mark.parametrize("batch", [1, 5, 6, 7])
def test_a_save_inside_an_accumulation_window_keeps_its_gradients(
    tmp_path: Path, expected: dict[str, int], batch: int
) -> None:
    """A save asked for after the first of two backward passes resumes with the second."""

    def ask(run: Run, number: int) -> None:
        if number == batch:
            run.save()

    with pytest.raises(Crash):
        train(tmp_path, crash_at=batch + 2, each=ask)
    run, found = train(tmp_path)
    assert run.resumed
    assert found == expected
    assert run.verdict is None or run.verdict.verdict == "identical"


def test_a_finished_run_does_nothing_more(tmp_path: Path, expected: dict[str, int]) -> None:
    """Run again, the command finds all epochs done, and restores the end."""
    train(tmp_path, save_every=Every(steps=100))
    run, found = train(tmp_path, save_every=Every(steps=100), each=lambda *_: pytest.fail("a batch was done again"))
    assert found == expected
    assert run.epoch == 2


def test_workers_may_read_the_batches(tmp_path: Path, expected: dict[str, int]) -> None:
    """What workers have read ahead is read again: the position is what the loop has taken."""

    def read() -> Loader:
        return Loader(data(), 4, shuffle=True, num_workers=1)

    with pytest.raises(Crash):
        train(tmp_path, crash_at=5, save_every=Every(steps=1), source=read)
    assert train(tmp_path, source=read)[1] == expected


def test_a_plain_loader_is_carried(tmp_path: Path) -> None:
    """A shuffled DataLoader goes on in the middle of the permutation that it had drawn."""

    def read() -> DataLoader[Any]:
        return DataLoader(data(), batch_size=4, shuffle=True)

    never = train(tmp_path / "never", source=read)[1]
    for batch in (3, 8):
        with pytest.raises(Crash):
            train(tmp_path / str(batch), crash_at=batch, save_every=Every(steps=1), source=read)
        assert train(tmp_path / str(batch), source=read)[1] == never


def test_passes_that_are_left_early_and_several_in_an_epoch(tmp_path: Path) -> None:
    """Code before, between and after the loops of an epoch runs as often as in a run without crashes."""

    def leg(folder: Path, crash_at: int | None) -> tuple[list[str], torch.Tensor]:
        built = parts()
        built["place"] = place = {"batch": 0}  # what the loop counts is state
        done: list[str] = []
        with Run(folder, save_every=Every(steps=1), **built) as run:
            first, second = DataLoader(data(), batch_size=4, shuffle=True), loader()
            number = 0
            for epoch in run.epochs(2):
                torch.rand(3)
                for read in (first, second):
                    for batch in run.batches(read):
                        learn(built, batch)
                        place["batch"] += 1
                        done.append(f"{epoch} {read is first}")
                        number += 1
                        if number == crash_at:
                            raise Crash
                        if read is first and place["batch"] == 4:
                            break
                    place["batch"] = 0
                    built["scheduler"].step()
        return done, built["model"][0].weight.detach().clone()

    whole, weights = leg(tmp_path / "never", None)
    assert len(whole) == 2 * (4 + 6)
    for crash in (3, 9, 14):
        with pytest.raises(Crash):
            leg(tmp_path / str(crash), crash)
        rest, found = leg(tmp_path / str(crash), None)
        assert whole[-len(rest) :] == rest
        assert len(rest) < len(whole)
        assert torch.equal(weights, found)


def test_a_loop_by_hand(tmp_path: Path) -> None:
    """restore(), save() at once, and step do without epochs() and batches()."""

    def leg(folder: Path, upto: int) -> tuple[int, torch.Tensor]:
        built = parts()
        with Run(folder, save_every=Every(steps=2), **built) as run:
            start = run.restore()
            while run.step < upto:
                learn(built, (torch.randn(4, 4), torch.randint(2, (4,))))
                run.save_if_due()
            run.save()
        return start, built["model"][0].weight.detach().clone()

    assert leg(tmp_path / "once", 6)[0] == 0
    assert leg(tmp_path / "twice", 3)[0] == 0
    start, weights = leg(tmp_path / "twice", 6)
    assert start == 3
    assert torch.equal(weights, leg(tmp_path / "once", 6)[1])


def test_the_step_can_be_set(tmp_path: Path) -> None:
    """A loop whose steps cannot be seen counts them itself."""
    with Run(tmp_path, save_every=None, **parts()) as run:
        run.step = 40
        run.save()
    with Run(tmp_path, **parts()) as run:
        assert run.step == 40


def test_the_best_checkpoint_is_of_the_step_at_which_it_was_measured(tmp_path: Path) -> None:
    """Logging the value that Keep(best=…) names saves at the next boundary, with the value as a fact."""
    values = iter([0.5, 0.1, 0.9, 0.8])
    built = parts()
    with Run(tmp_path, save_every=Every(steps=100), keep=Keep(last=1, best="val_loss"), **built) as run:
        for _ in run.epochs(4):
            for batch in run.batches(read := locals().get("read") or loader()):
                learn(built, batch)
            run.log(val_loss=next(values))
    with Store(tmp_path) as store:
        assert [(c.step, c.facts["val_loss"]) for c in store.checkpoints()] == [(6, 0.1), (12, 0.8)]


def test_the_log_has_each_step_once(tmp_path: Path) -> None:
    """Lines of steps that a crash undid are written anew, not twice."""
    with pytest.raises(Crash):
        train(tmp_path, crash_at=5, save_every=Every(steps=1))
    train(tmp_path)
    lines = msgspec.json.Decoder().decode_lines((tmp_path / "log.jsonl").read_bytes())
    assert len(lines) == 12
    assert [line["step"] for line in lines] == [0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6]
    assert {type(line["loss"]) for line in lines} == {float}


def test_changed_data_is_refused_with_both_values(tmp_path: Path) -> None:
    """A resume with other data would give other bits without a word; it may be accepted."""
    with pytest.raises(Crash):
        train(tmp_path, crash_at=4, save_every=Every(steps=1))

    def more() -> Loader:
        return Loader(data(28), 4, shuffle=True)

    with pytest.raises(DataChangedError, match=r"loader 'loader 0'.*length was 24 .*is 28 now.*accept_changed_data"):
        train(tmp_path, source=more)


def test_a_loader_of_unknown_position_is_refused(tmp_path: Path) -> None:
    """The reason and the remedy are said at the first use, not at the resume."""
    with pytest.raises(NotCarriedError, match=r"num_workers=1 cannot be carried.*Loader.from_torch"):
        train(tmp_path, source=lambda: DataLoader(data(), batch_size=4, num_workers=1))


def test_a_part_that_is_missing_or_new_refuses_the_resume(tmp_path: Path) -> None:
    """Nothing is left out in silence; strict=False says it and goes on."""
    train(tmp_path, epochs=1, save_every=Every(steps=1))
    built = parts()
    built["average"] = built.pop("ema")
    with Run(tmp_path, **built) as run, pytest.raises(ResumeRefusedError, match=r"(?s)ema: absent.*average: absent"):
        run.restore()
    with Run(tmp_path, strict=False, **built) as run, pytest.warns(ResumeDiffersWarning, match="ema: absent"):
        assert run.restore() == 3


def test_a_damaged_checkpoint_is_said_and_passed_over(
    tmp_path: Path, expected: dict[str, int], capsys: pytest.CaptureFixture[str]
) -> None:
    """The newest good one is resumed from, with the same bits at the end."""
    train(tmp_path, epochs=1, save_every=Every(steps=1), background=False)
    newest = max((tmp_path / "checkpoints").iterdir())
    newest.write_bytes(newest.read_bytes()[:-9])
    assert train(tmp_path)[1] == expected
    said = capsys.readouterr().err
    assert "damaged and was set aside" in said
    assert newest.name in said


def test_what_was_forgotten_is_named_before_the_first_save(tmp_path: Path) -> None:
    """A schedule of a registered optimizer that is no part of the run would restart."""
    built = parts()
    schedule = built.pop("scheduler")
    with Run(tmp_path, **built) as run, pytest.warns(ForgottenWarning, match=r"StepLR.*sets the rates.*register"):
        run.save()
    del schedule


def test_a_part_that_cannot_be_put_back_is_refused(tmp_path: Path) -> None:
    """A plain number is no place to restore into."""
    with pytest.raises(RunStateError, match=r"best=0.5.*Put it into a dict"):
        Run(tmp_path, best=0.5)
    with pytest.raises(RunStateError, match=r"hook"):
        Run(tmp_path, hook=iter(()))
    with pytest.raises(UsageError, match="name the parts"):
        Run(tmp_path)


def test_a_closed_run_is_over(tmp_path: Path) -> None:
    """Its folder belongs to nobody then, so nothing may go on writing there."""
    run = Run(tmp_path, **parts())
    run.close()
    run.close()
    with pytest.raises(RunError, match="is closed"):
        next(run.epochs(1))


@pytest.mark.parametrize("crash", [None, 8])
def test_a_save_while_averaged_weights_are_swapped_in_keeps_the_raw_ones(tmp_path: Path, crash: int | None) -> None:
    """Validation with the average in the model's place asks for a save: it comes at a boundary, of the weights that train."""

    def leg(folder: Path, *, asks: bool, crash_at: int | None = None) -> dict[str, int]:
        built, number = parts(), 0
        with Run(folder, save_every=None, **built) as run:
            read = loader()
            for _ in run.epochs(3):
                built["model"].train()
                for batch in run.batches(read):
                    learn(built, batch)
                    number += 1
                    if number == crash_at:
                        raise Crash
                raw = [p.detach().clone() for p in built["model"].parameters()]
                with torch.no_grad():
                    for parameter, average in zip(built["model"].parameters(), built["ema"].parameters(), strict=True):
                        parameter.copy_(average)
                    if asks:
                        run.save()
                    for parameter, saved in zip(built["model"].parameters(), raw, strict=True):
                        parameter.copy_(saved)
        return bits(built)

    never = leg(tmp_path / "never", asks=False)
    if crash is not None:
        with pytest.raises(Crash):
            leg(tmp_path / "asked", asks=True, crash_at=crash)
    assert leg(tmp_path / "asked", asks=True) == never
    with Store(tmp_path / "asked") as store:
        assert [commit.step for commit in store.checkpoints()] == [3, 6, 9]


def test_steps_rise_over_legs_and_end_at_the_target(tmp_path: Path) -> None:
    """Epochs are those of the whole run: a resumed leg does what is left, and its checkpoints go on counting."""
    with pytest.raises(Crash):
        train(tmp_path, epochs=4, crash_at=13, save_every=Every(steps=1), keep=None, background=False)
    left: list[int] = []
    run, _ = train(tmp_path, epochs=4, save_every=Every(steps=1), keep=None, each=lambda run, _: left.append(run.step))
    assert (run.step, run.epoch, len(left)) == (12, 4, 12)
    with Store(tmp_path) as store:
        assert sorted({commit.step for commit in store.checkpoints()}) == list(range(1, 13))


def test_nothing_that_is_stored_names_a_class_to_import(tmp_path: Path) -> None:
    """No pickle: no file of a run has a path of NumPy's or torch's modules that a later version could move."""
    train(tmp_path, epochs=1, save_every=Every(steps=1))
    files = [path for folder in ("checkpoints", "objects", "legs") for path in (tmp_path / folder).rglob("*.*")]
    assert len(files) > 3
    for path in files:
        data = path.read_bytes()
        assert not [name for name in (b"numpy.core", b"numpy._core", b"torch._utils", b"collections") if name in data]
