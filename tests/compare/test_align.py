"""Where a leg joins a reference."""

from bitproof.compare.align import Joint, join
from bitproof.compare.judge import stitch
from bitproof.compare.timeline import Placed
from bitproof.trail.records import Event
from kit.built import leg, micro, state
from kit.built import state as at


def test_by_the_whole_state() -> None:
    """A leg joins where the reference had its first state, whatever the script calls its steps."""
    reference = stitch([leg([state(i) for i in range(6)])])
    assert join(reference, leg([state(3), state(4)])) == Joint(3, 0, "state")


def test_a_tie_goes_to_the_longest_continuation() -> None:
    """Where a step at rate 0 leaves the state as it was, the batches that follow decide."""
    states = [state(0), state(0), state(0), state(1)]
    reference = stitch([leg(states, batches=["a", "b", "c", "d"])])
    for offset in range(3):
        found = join(reference, leg(states[offset:], batches=["a", "b", "c", "d"][offset:]))
        assert (found.step, found.how) == (offset, "state")


def test_a_tie_that_nothing_decides_goes_to_the_latest() -> None:
    """A leg whose data is new to the reference joins at the last of equal states."""
    reference = stitch([leg([state(0), state(0), state(1)], batches=["a", "b", "c"])])
    assert join(reference, leg([state(0)], batches=["x"])).step == 1


def test_no_seam_lies_behind_the_kill() -> None:
    """A state that comes back later in the reference is not where a leg joins that was cut off before."""
    reference = stitch([leg([state(i % 3) for i in range(9)])])
    assert join(reference, leg([state(1)]), not_after=5).step == 4


def test_by_most_tensors_in_common() -> None:
    """A leg with one wrong weight joins where the rest of its state is found; what never changes has no vote."""
    steps = [
        {"weights": {"Net/a": i, "Net/b": i, "Net/frozen": 0}, "optimizer": {}, "hyperparameters": {}} for i in range(6)
    ]
    other = {"weights": {"Net/a": 3, "Net/b": "wrong", "Net/frozen": 0}, "optimizer": {}, "hyperparameters": {}}
    assert join(stitch([leg(steps)]), leg([other])) == Joint(3, 0, "part")


def test_never_loaded_weights_join_where_the_optimizer_does() -> None:
    """Weights as they are at the start do not pull a leg there whose larger part is from later."""
    steps = [
        {"weights": {"Net/w": i}, "optimizer": {"A/w.m": f"m{i}", "A/w.v": f"v{i}"}, "hyperparameters": {}}
        for i in range(6)
    ]
    mixed = {**steps[4], "weights": {"Net/w": 0}}
    assert join(stitch([leg(steps)]), leg([mixed])) == Joint(4, 0, "part")


def test_by_the_file_that_was_loaded() -> None:
    """A leg whose state is nowhere joins where the file that it read was written."""
    reference = stitch([leg([state(i) for i in range(6)])])
    saved = Event(4, 0, "file-saved", {"path": "/out/4.tmp"}, None)
    loaded = Event(0, 0, "file-loaded", {"path": "/out/4.pt"}, None)
    killed = Placed(leg([state(i) for i in range(5)], events=[saved]))
    other = leg([at("x", "y", "z")], events=[loaded])
    assert join(reference, other, interrupted=[killed]) == Joint(4, 0, "file")


def test_nowhere() -> None:
    """A leg that shares nothing with the reference has no seam."""
    reference = stitch([leg([state(i) for i in range(3)])])
    assert join(reference, leg([at("x", "y", "z")])) == Joint(None, 0, "nothing")


def test_inside_a_window() -> None:
    """In an accumulation window the batches tell after which backward pass a leg joins."""
    windows = [[micro(f"{step}.{m}") for m in range(3)] for step in range(4)]
    reference = stitch([leg([state(i) for i in range(4)], micros=windows)])
    for done in range(3):
        rest = [windows[2][done:], windows[3]]
        assert join(reference, leg([state(2), state(3)], micros=rest)) == Joint(2, done, "state")
