"""A verdict as text: what it says, and that it says it safely wherever it is printed."""

import io
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from bitproof.compare.verdict import Cause, Divergence, Latent, Moment, Seam, Steps, Trails, Verdict
from bitproof.environment import Difference
from bitproof.report import terminal

Make = Callable[..., Verdict]

SCRIPT = """
import sys
from pathlib import Path
import msgspec
from rich.console import Console
from bitproof.compare.verdict import Verdict
from bitproof.report import terminal
terminal.render(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Verdict), Console())
"""


def rendered(verdict: Verdict, *, verbose: bool = False) -> str:
    """Return what a pipe receives."""
    file = io.StringIO()
    terminal.render(verdict, Console(file=file), verbose=verbose)
    return file.getvalue()


def on_terminal(verdict: Verdict, width: int) -> str:
    """Return what a terminal without colours receives."""
    file = io.StringIO()
    terminal.render(verdict, Console(file=file, force_terminal=True, no_color=True, width=width, color_system=None))
    return file.getvalue()


@pytest.mark.parametrize(
    ("kind", "headline"),
    [
        ("identical", "✓ IDENTICAL"),
        ("diverged", "✗ DIVERGED at step 21 in batch (input_ids)"),
        ("two-runs", "✗ DIVERGED at step 21 in gradients (4 of 12: Net/fc1.weight, Net/fc1.bias, Net/fc2.weight, …)"),
        ("not-resumed", "✗ NOT RESUMED"),
        ("not-reproducible", "✗ NOT REPRODUCIBLE: differs at step 3 in gradients (1 of 12: Net/embedding.weight)"),
        ("resume-failed", "✗ RESUME FAILED"),
        ("could-not-judge", "? COULD NOT JUDGE: the reference failed"),
        ("four-trials", "✗ NOT RESUMED"),
    ],
)
def test_headline(make: Make, kind: str, headline: str) -> None:
    """The first line is the answer."""
    assert rendered(make(kind)).splitlines()[0] == headline


@pytest.mark.parametrize(
    ("kind", "changes", "sentence"),
    [
        (
            "identical",
            {},
            "64 steps of the reference; killed after step 25, resumed at step 20 (5 redone); 44 of 44 steps after the seam compared: identical",
        ),
        ("diverged", {}, "44 of 44 steps after the seam compared, none identical"),
        (
            "diverged",
            {"steps": Steps(64, 44, 5), "divergence": Divergence(26, 0, "loss", [], 1, 1)},
            "44 of 44 steps after the seam compared, the first 5 identical",
        ),
        ("two-runs", {}, "64 steps compared, the first 20 identical"),
        ("not-resumed", {}, "killed after step 25, started again at step 0 (25 redone)"),
        ("not-reproducible", {}, "64 steps of the reference; 25 steps compared, the first 2 identical"),
        (
            "identical",
            {"seams": [Seam(Moment(5), Moment(4), 1), Seam(Moment(9, 2), Moment(8, 1), 1)], "steps": Steps(64, 60, 60)},
            "resumed at step 4 (1 redone); killed after step 9, micro-step 2, resumed inside step 8, after micro-step 1 (1 redone); 60 of 60 steps after the first seam compared: identical",
        ),
        (
            "identical",
            {"seams": [Seam(Moment(25), Moment(21, 2), 4)], "steps": Steps(64, 44, 44)},
            "resumed inside step 21, after micro-step 2 (4 redone); 44 of 44 steps after the seam compared: identical",
        ),
        (
            "identical",
            {"seams": [Seam(Moment(64), Moment(64), 0)], "steps": Steps(64, 0, 0)},
            "killed after step 64, resumed at step 64 (none redone); no step was left after the seam",
        ),
        ("resume-failed", {"seams": [Seam(Moment(25), None, 0)]}, "64 steps of the reference; killed after step 25\n"),
        (
            "diverged",
            {"seams": [Seam(Moment(25), None, 0)], "steps": Steps(64, 0, 0)},
            "64 steps of the reference; killed after step 25\n",
        ),
        (
            "diverged",
            {"seams": [Seam(Moment(25), None, 0)], "steps": Steps(64, 64, 0)},
            "killed after step 25, resumed in a state that the reference never had",
        ),
    ],
)
def test_says_what_was_compared(make: Make, kind: str, changes: dict[str, object], sentence: str) -> None:
    """One sentence says what was compared and how much of it was equal, in the words of the design."""
    assert sentence in rendered(make(kind, **changes))


def test_place_names_rank_and_micro_step(make: Make) -> None:
    """A difference on another rank or inside a step says so."""
    text = rendered(make("diverged", divergence=Divergence(7, 3, "loss", ["loss"], 1, 1, micro=2)))
    assert "step 7, micro-step 2 on rank 3 in loss (loss)" in text


def test_runs_of_unequal_length(make: Make) -> None:
    """Facet `end` is told as what it means."""
    text = rendered(make("two-runs", divergence=Divergence(40, 0, "end", [], 1, 1)))
    assert text.startswith("✗ DIVERGED at step 40: the two runs do not end at the same step\n")


def test_first_cause_in_full_and_others_in_a_line(make: Make) -> None:
    """The first cause shows three lines of evidence, place and remedy; a further one only its summary."""
    text = rendered(make("diverged"))
    assert "data-restarted (certain): the resumed leg read the epoch from its start" in text
    assert "32 of 32 samples" in text
    assert "and 1 more" in text
    assert "at train.py:41\n" in text
    assert "What to do: save how many batches" in text
    assert "Also rng-reseeded (likely): torch's generator equals its state at step 0" in text
    assert "it was seeded at train.py:12" not in text


def test_verbose_shows_everything(make: Make) -> None:
    """With verbose, every cause has its evidence, the environment is whole and the command is there."""
    environment = [Difference(f"env.V{number}", None, "1") for number in range(9)]
    text = rendered(make("diverged", environment=environment), verbose=True)
    assert "512, 84, 1033" in text
    assert "it was seeded at train.py:12" in text
    assert "env.V8: not set → 1" in text
    assert "python train.py --out '{out}'" in text
    assert " more" not in text


def test_environment_is_cut_after_six(make: Make) -> None:
    """Six differences are listed, the rest counted."""
    text = rendered(make("diverged", environment=[Difference(f"env.V{number}", None, "1") for number in range(9)]))
    assert "env.V5" in text
    assert "env.V6" not in text
    assert "and 3 more" in text


def test_names_the_other_side(make: Make) -> None:
    """The side that is not the reference is the resumed leg in a proof and the other run in a diff."""
    assert "(reference → resumed)" in rendered(make("diverged"))
    assert "(reference → other)" in rendered(make("two-runs"))


def test_latent_and_unseen(make: Make) -> None:
    """What differs without effect and what was not observed are said."""
    text = rendered(make("diverged"))
    assert "Latent rng-not-restored: numpy's generator differs, and nothing draws from it\n" in text
    assert "Not observed: the compiled step's intermediate values\n" in text


def test_failed_leg_shows_its_last_lines_without_their_colours(make: Make) -> None:
    """A failed resume shows the leg's last output, with no terminal code of the leg's own."""
    text = rendered(make("resume-failed"))
    assert "The last output of the resumed leg:" in text
    assert "│ KeyError: 'optimizer'\n" in text
    assert "The last output of the reference:" in rendered(make("could-not-judge"))


def test_trials_table(make: Make) -> None:
    """Several trials are a line each, then the worst in full."""
    lines = rendered(make("four-trials")).splitlines()
    assert "  4 trials: 2 identical, 1 diverged, 1 not resumed" in lines
    head = next(line for line in lines if line.startswith("  fault"))
    assert head.split() == ["fault", "verdict", "where", "first", "cause"]
    (diverged,) = [line for line in lines if line.startswith("  --kill 25")]
    assert diverged[head.index("where") :].startswith("step 21 in batch (input_ids)  data-restarted")
    assert "  The worst: --kill during-save:2" in lines
    assert any("checkpoint.pt was written after step 20" in line for line in lines)


def test_many_identical_trials_are_counted(make: Make) -> None:
    """A proof at every step lists its findings and only some of the rest, all with verbose."""
    trials = [make("identical", fault=str(step)) for step in range(1, 64)] + [make("diverged", fault="64")]
    verdict = make("diverged", trials=trials)
    text = rendered(verdict)
    assert "--kill 64" in text
    assert "and 52 more, identical" in text
    assert "--kill 63" not in text
    assert "--kill 63" in rendered(verdict, verbose=True)


def test_markup_in_names_is_text(make: Make) -> None:
    """Names that look like console markup are printed as they are."""
    cause = Cause("unknown", "possible", "[red]no[/red] [/]", [":smile: [link=x]"], "[bold]", "[a].py:1")
    text = rendered(make("diverged", divergence=Divergence(1, 0, "batch", ["[red]"], 1, 1), causes=[cause]))
    for part in ("([red])", "[red]no[/red] [/]", ":smile: [link=x]", "[bold]", "at [a].py:1"):
        assert part in text


def test_terminal_codes_in_names_are_shown(make: Make) -> None:
    """No name can move the cursor, change a colour, or turn the direction of the text."""
    evil = "a\x1b[2J\x07\r\n\u202eb\udcff"
    verdict = make(
        "diverged",
        divergence=Divergence(1, 0, "batch", [evil], 1, 1),
        causes=[Cause(evil, "likely", evil, [evil], evil, evil)],
        latent=[Latent(evil, evil)],
        environment=[Difference(evil, evil, [evil])],
        unseen=[evil],
        output=[evil],
        message=evil,
        command=[evil],
        trails=Trails(evil, [evil], [evil]),
    )
    for text in (rendered(verdict, verbose=True), rendered(make("identical", trials=[verdict]))):
        assert not {"\x1b", "\x07", "\r", "\u202e", "\udcff"} & set(text)
        assert r"a\x1b[2J\x07\r\n\u202eb\udcff" in text


def test_pipe_never_wraps(make: Make) -> None:
    """Each path and sentence is one line in a pipe, however long."""
    path = "/" + "very-long-folder/" * 30 + "a.trail"
    assert f"reference    {path}\n" in rendered(make("identical", trails=Trails(path)))


def test_terminal_wraps_words_and_keeps_paths(make: Make) -> None:
    """On a terminal prose breaks between words, and no path has a break in it."""
    path = "/" + "very-long-folder/" * 10 + "a.trail"
    cause = Cause("unknown", "possible", "many short words " * 20, [f"see {path}"], "", f"{path}:12")
    lines = on_terminal(make("diverged", causes=[cause], trails=Trails(path)), width=60).splitlines()
    assert all(len(line) <= 60 for line in lines if path not in line)
    assert sum(path in line for line in lines) == 3


def test_any_verdict_renders_twice_the_same(any_verdict: Verdict) -> None:
    """Every kind of verdict renders, always with the same text and no control character."""
    text = rendered(any_verdict, verbose=True)
    assert text == rendered(any_verdict, verbose=True)
    assert all(char == "\n" or char.isprintable() for char in text)


def test_ascii_console_gets_ascii(any_verdict: Verdict) -> None:
    """A console whose encoding lacks the symbols gets words and escapes instead of an error."""
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="ascii")
    terminal.render(any_verdict, Console(file=file), verbose=True)
    file.flush()
    assert raw.getvalue().decode("ascii").startswith(("OK IDENTICAL", "X ", "? COULD"))


def test_ascii_console_escapes_foreign_names(make: Make) -> None:
    """A name that the encoding cannot hold is escaped."""
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="latin-1")
    terminal.render(make("identical", trails=Trails("/данные/é.trail")), Console(file=file))
    file.flush()
    assert r"/\u0434\u0430\u043d\u043d\u044b\u0435/é.trail" in raw.getvalue().decode("latin-1")


@pytest.fixture
def program(make: Make, tmp_path: Path) -> list[str]:
    """Return a command that prints a diverged verdict."""
    answer = tmp_path / "verdict.json"
    answer.write_bytes(msgspec.json.encode(make("diverged")))
    return [sys.executable, "-c", SCRIPT, str(answer)]


def environment(**changes: str) -> dict[str, str]:
    """Return this environment without what decides about colour, and with changes."""
    decisive = {"NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS", "CLICOLOR"}
    kept = {name: text for name, text in os.environ.items() if name not in decisive}
    return kept | {"TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8"} | changes


def through_pty(command: list[str], env: dict[str, str]) -> str:
    """Run a command on a pseudo terminal and return what it wrote there."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env) as process:
        os.close(theirs)
        written = b""
        try:
            while piece := os.read(ours, 4096):
                written += piece
        except OSError:  # Linux ends a pseudo terminal with EIO
            pass
        finally:
            os.close(ours)
    assert process.returncode == 0, written
    return written.decode()


def test_colour_on_a_terminal(program: list[str]) -> None:
    """A real terminal gets colours."""
    text = through_pty(program, environment())
    assert "\x1b[1;31m✗ DIVERGED" in text


def test_no_color_on_a_terminal(program: list[str]) -> None:
    """NO_COLOR takes the colours away on a real terminal."""
    text = through_pty(program, environment(NO_COLOR="1"))
    assert "✗ DIVERGED" in text
    assert "\x1b[31m" not in text
    assert ";31m" not in text


def test_plain_in_a_pipe(program: list[str]) -> None:
    """A real pipe gets no terminal code at all."""
    done = subprocess.run(program, capture_output=True, env=environment(), check=True)
    assert done.stderr == b""
    assert done.stdout.decode().startswith("✗ DIVERGED")
    assert b"\x1b" not in done.stdout
