"""Options of faults: read, refused, and what the default is."""

import pytest

from bitproof.compare.verdict import Moment
from bitproof.errors import UsageError
from bitproof.prove import plan
from bitproof.prove.options import Options, check
from bitproof.prove.plan import Wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("13", Wanted((Moment(13),))),
        ("13.2", Wanted((Moment(13, 2),))),
        ("5,9", Wanted((Moment(5), Moment(9)))),
        ("5.1,9", Wanted((Moment(5, 1), Moment(9)))),
        ("every", Wanted(every=True)),
        ("during-save", Wanted(write=1)),
        ("during-save:7", Wanted(write=7)),
        ("during-save:every", Wanted(every_write=True)),
    ],
)
def test_kill(text: str, wanted: Wanted) -> None:
    """Each form of --kill is read as documented."""
    assert plan.parse(text) == wanted


@pytest.mark.parametrize(
    "text", ["", "x", "0", "-1", "1.5.2", "5,", "during-save:0", "during-save:x", "Every", "1e3", "٣x"]
)
def test_kill_garbage(text: str) -> None:
    """Anything else is refused, and every form is listed."""
    with pytest.raises(UsageError, match=r"expected a step \(13\), a micro-step \(13\.2\).*during-save:every"):
        plan.parse(text)


@pytest.mark.parametrize("text", ["9,5", "5,5"])
def test_kills_out_of_order(text: str) -> None:
    """Several crashes in one run come one after another."""
    with pytest.raises(UsageError, match="one after another, such as 5,9"):
        plan.parse(text)


def test_signals() -> None:
    """A signal is known by its name with or without SIG; an unknown one, or one that only stops, is refused."""
    assert plan.signal_number("term") == plan.signal_number("SIGTERM") == 15
    with pytest.raises(UsageError, match="--signal FOO: there is no such signal"):
        plan.signal_number("FOO")
    with pytest.raises(UsageError, match="stops a process instead of ending it"):
        plan.signal_number("STOP")


def test_split() -> None:
    """An open quote is named with its option."""
    assert plan.split("--resume-args", "--a 'b c'") == ["--a", "b c"]
    with pytest.raises(UsageError, match=r"--resume-args .*: No closing quotation"):
        plan.split("--resume-args", "--a 'b")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"command": ["python", "train.py"]}, r"Put \{out\} in its place"),
        ({"command": []}, "there is no command"),
        ({"steps": 1}, "--steps 1: expected at least 2"),
        ({"steps": 5, "wanted": [plan.parse("6")]}, "--kill 6: with --steps 5 there is no such step"),
        ({"resume_args": ["--resume"], "resume_command": ["python", "x.py"]}, "exclude each other"),
        ({"jobs": 2, "output": "runs"}, "--jobs 2: .* folders of their own"),
        ({"reference": "a.trail", "wanted": [plan.parse("during-save")]}, "leave out --reference"),
    ],
)
def test_options_that_do_not_fit(more: dict[str, object], said: str) -> None:
    """Options that contradict each other or the command are refused before anything is run."""
    from pathlib import Path

    words: dict[str, object] = {"command": ["python", "train.py", "{out}"]} | more
    for key in ("output", "reference"):
        if key in words:
            words[key] = Path(str(words[key]))
    with pytest.raises(UsageError, match=said):
        check(Options(**words))  # type: ignore[arg-type]
