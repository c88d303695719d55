"""The facts: what is seen here, and what the verdict would be if it were otherwise."""

import ast
import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
from rich.console import Console

from bitproof.errors import LaunchError, UsageError
from bitproof.facts import c02_schedule
from bitproof.facts.catalogue import BY_ID, FACTS, TITLES, choose, page
from bitproof.facts.fact import Fact, Outcome, Verdict
from bitproof.facts.running import Trials
from bitproof.report import facts as report
from bitproof.report.terminal import Page
from kit.commands import Ran
from kit.proofs import ROOT, bitproof, processes_of, wait_until

HOLDS = "holds"
SEEN: dict[str, tuple[str, str]] = {
    "D1": (HOLDS, r"\(1e16 \+ 1\) − 1e16 = 0\.0, 1e16 \+ \(1 − 1e16\) = 0\.0, \(1e16 − 1e16\) \+ 1 = 1\.0\."),
    "D2": (HOLDS, r"add up to 511\.\d+ from left to right and to 511\.\d+ as a tree: \d ULP apart\."),
    "D3": ("cannot-be-tried", r"needs a second interpreter .* `bitproof facts D3 --other-python PATH`\."),
    "D4": (
        HOLDS,
        r"Among 4 processes that seeded with 0, 1 sequence of 16 flips was found; keyed by sample, 4 were\.",
    ),
    "D5": (HOLDS, r"In (\d+) of \1 ties argmax gave the first index\."),
    "D6": (
        HOLDS,
        r"gave ([2-9]|10) different results for index_put_, 1 for index_add_, 1 for scatter_add_, 1 for bincount; with .* setting 1 for index_put_\.",
    ),
    "D7": (
        HOLDS,
        r"Of 10 tensors with 1,000,000 numbers each, [1-9]0? had another sum with 2 threads .* repeats its own\.",
    ),
    "D8": (HOLDS, r"With AVX\w+ the same 1,000,000 numbers add up to -\d+\.\d+ .*; with DEFAULT to -\d+\.\d+ and"),
    "D9": ("cannot-be-tried", r"no CUDA device here\. .* nn\.GRU or nn\.LSTM .* repeats its dropout \(True\)"),
    "D10": (HOLDS, r"2 workers repeat themselves \(True\); bitproof's loader gave the same with 0, 1 and 2 \(True\)\."),
    "D11": (HOLDS, r"with preserve_rng_state=True: torch; with False: none\."),
    "D12": (HOLDS, r"steps a second without the deterministic setting, .* with it: \d+\.\d\d times the time"),
    "C1": (HOLDS, r"by \[8\.906, 9\.015, 9\.114\] in the next 3 steps, the resumed one by \[1\.0, 1\.9, 2\.71\]\."),
    "C2": (
        "does-not-hold",
        (
            r"the right rates are 0\.025 ×3, 0\.0125 ×6\. With the optimizer loaded, a new StepLR gives 0\.025 ×6, 0\.0125 ×3; "
            r"a new LambdaLR 0\.1 ×6, 0\.05 ×3, or 0\.025 ×1, 0\.1 ×5, 0\.05 ×3 if made before the optimizer was loaded\. "
            r"With nothing loaded: 0\.1 ×6, 0\.05 ×3 and 0\.1 ×6, 0\.05 ×3\."
        ),
    ),
    "C3": (HOLDS, r"was 0 before its first step and 1 after it, with exp_avg, exp_avg_sq, step\."),
    "C4": (
        HOLDS,
        r"holds scale, growth_factor, backoff_factor, growth_interval, _growth_tracker; a disabled one's has 0 entries",
    ),
    "C5": (HOLDS, r"was (0\.\d{4}); after seeding again it was (0\.\d{4}), .*\(\2\); with the state restored \1\."),
    "C6": (HOLDS, r"killed at (\d+) places .* whole 0 times when written in place, \1 times with a temporary name\."),
    "C7": (
        HOLDS,
        r"torch\.load 0 of 200, safetensors 0 of 200, torch\.distributed\.checkpoint 0 of 50; bitproof's store 200 of 200\.",
    ),
    "C8": (
        HOLDS,
        (
            r"starts at 65536 and is 32768 after an overflow\..* goes 1024, 1024, 2048, 2048, 2048, 4096; .* "
            r"1024, 1024, 1024, 1024, 2048, 2048\."
        ),
    ),
    "C9": (
        HOLDS,
        r"seeds alone 4 of 4 streams differ; with all states 0; .*for each of random, numpy, torch, a torch\.Gen",
    ),
    "C10": (
        HOLDS,
        (
            r"momentum float32 0\.19\d+ → bfloat16 0\.19\d+; .* samples int64 514 → bfloat16 512\.0; .* "
            r"step int64 514 → int64 514\. Restored by bitproof, all are exact \(True\)"
        ),
    ),
}
"""What this machine's verdicts are, and what is said to have been seen."""


class OneFact(msgspec.Struct, forbid_unknown_fields=True):
    """A fact as the documentation has it in JSON."""

    id: str
    verdict: Verdict
    seen: str
    statement: str
    topic: Literal["determinism", "checkpoints"]
    difficulty: Literal[1, 2, 3]
    snippet: str
    remedy: str


class WholeAnswer(msgspec.Struct, forbid_unknown_fields=True):
    """The answer of ``bitproof facts --json``."""

    format: Literal[1]
    facts: list[OneFact]


def test_all_facts_as_json(all_facts: Ran) -> None:
    """All facts come as the documented JSON alone, with status 0 and in a minute; nothing is left behind."""
    assert (all_facts.answer.status, all_facts.answer.err) == (0, "")
    found = msgspec.json.decode(all_facts.answer.out, type=WholeAnswer, strict=True)
    assert [fact.id for fact in found.facts] == list(SEEN)
    assert all(fact.snippet == BY_ID[fact.id].snippet for fact in found.facts)
    assert all_facts.seconds <= 60  # of processor time, so that a busy machine does not decide
    assert (all_facts.files, all_facts.processes) == ([], [])


@pytest.mark.parametrize("name", SEEN)
def test_what_is_seen_here(name: str, all_facts: Ran) -> None:
    """Each fact has the verdict that was measured, with the numbers behind it."""
    (found,) = (fact for fact in json.loads(all_facts.answer.out)["facts"] if fact["id"] == name)
    verdict, pattern = SEEN[name]
    if name == "D6" and len(os.sched_getaffinity(0)) < 2:
        verdict, pattern = "cannot-be-tried", "needs two cores"
    if name == "D8" and "only one capability" in found["seen"]:
        verdict, pattern = "cannot-be-tried", r"capability to PyTorch: \w+\."
    if name == "D9" and "on the GPU" in found["seen"]:
        pytest.skip("a CUDA device decides; test_judging has both answers")
    assert re.search(pattern, found["seen"], re.DOTALL), found["seen"]
    assert found["verdict"] == verdict


SCHEDULES = {
    name: {
        "at 15": {
            load: {"right": [0.025] * 3 + [0.0125] * 6, "found": [0.1] * 9}
            for load in (c02_schedule.LOADED, c02_schedule.BUILT_FIRST, c02_schedule.NOT_LOADED)
        }
    }
    for name in ("StepLR", "LambdaLR")
}
STATE = {"momentum": ["float32", 0.1], "samples": ["int64", 514], "step": ["int64", 514]}
RELEASE = {"release": "2.13.0", "losses": [1.0, 0.5], "weights": 3.0}
JUDGED: list[tuple[str, dict[str, Any], str, str]] = [
    ("D1", {"left": 1.0, "right": 1.0, "apart": 1.0}, "does-not-hold", "= 1.0, "),
    ("D2", {"chain": 1.0, "tree": 1.0, "ulp": 0}, "does-not-hold", "0 ULP apart"),
    ("D3", {**RELEASE, "other": {"error": "OSError: no"}}, "cannot-be-tried", "could not run the program: OSError: no"),
    ("D3", {**RELEASE, "other": RELEASE}, "cannot-be-tried", "Both interpreters hold torch 2.13.0"),
    (
        "D3",
        {**RELEASE, "other": {"release": "2.14.1", "losses": [1.0, 0.25], "weights": 3.5}},
        "holds",
        (
            "torch 2.13.0 and 2.14.1 part at step 2 of 2: loss 0.5 against 0.25. 1 losses differ, and the weights at the end add "
            "up to 3.0 against 3.5."
        ),
    ),
    (
        "D3",
        {**RELEASE, "other": {**RELEASE, "release": "2.14.1"}},
        "does-not-hold",
        "all 2 losses of this program are the same",
    ),
    ("D4", {"different": 4, "different_keyed": 4}, "does-not-hold", "4 sequence of 16 flips was found"),
    ("D5", {"first": 7, "tried": 8}, "does-not-hold", "In 7 of 8 ties"),
    (
        "D6",
        {"put": 1, "add": 1, "scatter": 1, "bins": 1, "pinned": 1, "cores": 2},
        "does-not-hold",
        "gave 1 different results",
    ),
    (
        "D6",
        {"put": 1, "add": 1, "scatter": 1, "bins": 1, "pinned": 1, "cores": 1},
        "cannot-be-tried",
        "needs two cores",
    ),
    ("D7", {"one": 1.0, "two": 1.0, "count": 0, "repeated": True}, "does-not-hold", "0 had another sum"),
    ("D7", {"one": 1.0, "two": 2.0, "count": 3, "repeated": False}, "cannot-be-tried", "did not repeat its own sums"),
    (
        "D8",
        {"best": ["AVX2", "1.0", "2.0"], "plain": ["DEFAULT", "1.0", "2.0"]},
        "does-not-hold",
        "with DEFAULT to 1.0",
    ),
    (
        "D8",
        {"best": ["DEFAULT", "1.0", "2.0"], "plain": ["DEFAULT", "1.0", "2.0"]},
        "cannot-be-tried",
        "only one capability",
    ),
    ("D8", {"best": ["AVX2", "1.0", "2.0"], "plain": []}, "cannot-be-tried", "ended with an error"),
    ("D9", {"cuda": True, "first": 1.0, "again": 2.0}, "holds", "gave 1.0 and then 2.0 on the GPU"),
    ("D9", {"cuda": True, "first": 1.0, "again": 1.0}, "does-not-hold", "gave 1.0 and then 1.0"),
    ("D11", {"kept": ["torch", "numpy"], "kept_without": []}, "does-not-hold", "torch and numpy; with False: none"),
    (
        "D12",
        {"without": 100.0, "with_it": 100.0, "ratio": 1.0, "ratio_unfilled": 1.0, "ratios": [1.0] * 15},
        "does-not-hold",
        "1.00 times the time",
    ),
    ("C1", {"uninterrupted": [1.0], "resumed": [1.0]}, "does-not-hold", "by [1.0]"),
    ("C2", {"found": SCHEDULES}, "holds", "a new StepLR gives 0.1 ×9"),
    ("C3", {"before": 1, "after": 1, "names": ["step"]}, "does-not-hold", "was 1 before"),
    (
        "C4",
        {"enabled": ["scale", "more"], "disabled": [], "on_cuda": [], "cuda": False},
        "does-not-hold",
        "scale, more;",
    ),
    (
        "C5",
        {"start": [0.1], "uninterrupted": [0.2], "seeded_again": [0.2], "restored": [0.2]},
        "does-not-hold",
        "after seeding again it was 0.2000",
    ),
    ("C6", {"tried": 20, "in_place": 3, "renamed": 20}, "does-not-hold", "whole 3 times when written in place"),
    (
        "C7",
        {"torch_load": 200, "safetensors": 0, "distributed": 0, "in_store": 200},
        "does-not-hold",
        "torch.load 200 of 200",
    ),
    ("C8", {"start": 1, "overflow": 1, "uninterrupted": [1], "resumed": [1]}, "does-not-hold", "starts at 1 and is 1"),
    (
        "C9",
        {"one_left_out": {"torch": []}, "all_states": [], "seeds_alone": ["torch"]},
        "does-not-hold",
        "for each of torch (not in every case).",
    ),
    ("C10", {"saved": STATE, "loaded": STATE, "exact": True}, "does-not-hold", "momentum float32 0.1 → float32 0.1"),
]
"""Values as a snippet could leave them elsewhere."""


@pytest.mark.parametrize(("name", "values", "verdict", "seen"), JUDGED)
def test_judging(name: str, values: dict[str, Any], verdict: str, seen: str) -> None:
    """A fact that comes out otherwise is not said to hold, and what was seen is said all the same."""
    found = BY_ID[name].judge(values)
    assert found[0] == verdict
    assert seen in found[1]


def test_the_schedule_as_first_measured() -> None:
    """After a resume at step 12 with step size 6, the rates of the next steps are those that the claim was written from."""
    left: dict[str, Any] = {}
    exec(c02_schedule.SNIPPET, left)
    step, function = left["found"]["StepLR"]["at 12"], left["found"]["LambdaLR"]["at 12"]
    # As read after each of eight steps: the first of the nine is the rate that was loaded.
    assert step[c02_schedule.LOADED]["found"] == [0.025] + [0.025] * 5 + [0.0125] * 3
    assert function[c02_schedule.LOADED]["found"][0] == 0.1
    assert function[c02_schedule.BUILT_FIRST]["found"][:2] == [0.025, 0.1]
    assert {rates[c02_schedule.NOT_LOADED]["found"][0] for rates in (step, function)} == {0.1}


def test_facts_as_text() -> None:
    """A fact is a few lines; with its code, code and remedy follow so that they can be copied; then it is counted."""
    written = io.StringIO()
    page = Page(Console(file=written))
    report.fact(BY_ID["D1"], Outcome("holds", "0.0 and 1.0."), page, code=False)
    report.fact(BY_ID["C10"], Outcome("does-not-hold", "All kept."), page, code=True)
    report.summary(["holds", "does-not-hold", "holds"], page)
    said = written.getvalue()
    assert said.startswith(
        f"✓ D1  {TITLES['D1']}: holds\n      {BY_ID['D1'].statement}\n      seen: 0.0 and 1.0.\n\n✗ C10 "
    )
    assert BY_ID["D1"].snippet not in said
    for text in (BY_ID["C10"].snippet, BY_ID["C10"].remedy_snippet, f"remedy: {BY_ID['C10'].remedy}\n"):
        assert text in said
    assert "3 facts: 2 hold, 1 does not hold\n" in said
    assert "\x1b" not in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["D77"], "there is no fact 'D77'. Known: D1, D2, "),
        (["D77"], "C10. Nearest: D7 (Threads change sums).\n"),
        (
            ["D1", "--topic", "checkpoints"],
            "none of D1 is about checkpoints. Leave out --topic, or name other facts.\n",
        ),
        (["--topic", "gpu"], "there is no topic 'gpu'. Topics: determinism, checkpoints.\n"),
        (
            ["--other-python", "/no/python"],
            "--other-python /no/python: expected a Python interpreter, but it could not be run",
        ),
        (
            ["--other-python", "/bin/ls"],
            "--other-python /bin/ls: expected a Python interpreter, but it did not answer as one.",
        ),
        (["C3", "--other-python", "x"], "--other-python x: none of the chosen facts compares two interpreters. Add D3"),
    ],
)
def test_bad_input(words: list[str], message: str, tmp_path: Path) -> None:
    """What cannot be meant is refused before anything runs, with one message and status 2."""
    answer = bitproof("facts", *words, cwd=tmp_path)
    assert (answer.status, answer.out) == (2, "")
    assert answer.err.startswith("bitproof: ")
    assert message in answer.err
    assert answer.err.count("\n") == 1


def test_an_interpreter_without_torch(tmp_path: Path) -> None:
    """A second interpreter that has no torch is refused, with how to get it."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n')
    python.chmod(0o755)
    answer = bitproof("facts", "D3", "--other-python", python, cwd=tmp_path)
    assert answer.status == 2
    assert answer.err == (
        f"bitproof: --other-python {python}: that interpreter has no torch. Install one into it: {python} -m pip install torch\n"
    )


@pytest.mark.slow
def test_the_same_release_twice(tmp_path: Path) -> None:
    """A second interpreter runs the same program; one with the same release shows nothing, and that is said."""
    answer = bitproof("facts", "D3", "--other-python", sys.executable, "--json", cwd=tmp_path)
    (found,) = json.loads(answer.out)["facts"]
    assert answer.status == 0
    assert found["verdict"] == "cannot-be-tried"
    assert re.match(r"Both interpreters hold torch 2\.\d+\.\S+; give one with another release", found["seen"])


@pytest.mark.slow
@pytest.mark.skipif(
    "BITPROOF_OTHER_PYTHON" not in os.environ, reason="BITPROOF_OTHER_PYTHON names no interpreter with another torch"
)
def test_another_release(tmp_path: Path) -> None:
    """With an interpreter that holds another torch, the first loss that differs is named with both values."""
    answer = bitproof("facts", "D3", "--other-python", os.environ["BITPROOF_OTHER_PYTHON"], "--json", cwd=tmp_path)
    (found,) = json.loads(answer.out)["facts"]
    assert found["verdict"] in {"holds", "does-not-hold"}
    assert re.search(r"part at step \d+ of 20: loss .* against|all 20 losses .* are the same bits", found["seen"])


def _fact(name: str, snippet: str, *, other: bool = False) -> Fact:
    return Fact(name, "t", "determinism", 1, "s", snippet, "r", lambda v: ("holds", f"{v}"), other_python=other)


UNUSUAL = {
    "plain": ("x, _y, z, f = (1, None), 2, object(), 0.1", "{'x': [1, None], 'f': 0.1}"),
    "raises": ("raise ValueError('no such kernel')", "ValueError: no such kernel"),
    "crashes": ("import os; os.kill(os.getpid(), 11)", "its process was ended by SIGSEGV"),
    "leaves": ("import os; os._exit(3)", "its process ended with status 3"),
    "exits": ("import sys; sys.exit('torch is too old')", "SystemExit: torch is too old"),
    "hangs": ("import time; time.sleep(600)", "it took more than 5 s"),
    "other": ("x = 1", "{'x': 1, 'other': {'x': 1}}"),
    "other raises": (
        "import sys; x = 1 if 'bitproof' in sys.modules else 1 / 0",
        "{'x': 1, 'other': {'error': 'ZeroDivisionError: division by zero'}}",
    ),
    "after": ("x = 1", "{'x': 1}"),
}


def test_code_that_fails() -> None:
    """Code that raises, crashes, leaves or hangs is said to be untried, and why; what comes after it still runs."""
    facts = {name: _fact(name, code, other=name.startswith("other")) for name, (code, _) in UNUSUAL.items()}
    with Trials([*facts.values()], other_python=Path(sys.executable), patience=5) as trials:
        found = {name: trials.outcome(fact).seen for name, fact in facts.items()}
    failed = "Its code ended with an error here: "
    assert {name: seen.removeprefix(failed) for name, seen in found.items()} == {
        name: seen for name, (_, seen) in UNUSUAL.items()
    }
    assert [name for name, seen in found.items() if seen.startswith(failed)] == [
        *("raises", "crashes", "leaves", "exits", "hangs")
    ]


def test_the_process_that_tries_is_gone() -> None:
    """If the process in which facts run dies, that is one error with what is known."""
    with (
        Trials([_fact("X", "import os, signal; os.kill(os.getppid(), signal.SIGKILL)")]) as trials,
        pytest.raises(LaunchError, match=r"the facts cannot be tried: \S+ could not run them: it ended with status -9"),
    ):
        trials.outcome(_fact("X", ""))


def test_ctrl_c(tmp_path: Path) -> None:
    """Ctrl-C ends with 130 and one line, and leaves no file and no process, also none that a fact started."""
    words = [sys.executable, "-m", "bitproof", "facts", "D8", "--json"]
    process = subprocess.Popen(
        words, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    # The command itself, the process that tries, its fork, and the two interpreters that D8 starts.
    wait_until(lambda: len(processes_of(tmp_path)) >= 4)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said == "bitproof: interrupted by SIGINT; no process was left behind, and no folder half changed\n"
    assert (list(tmp_path.iterdir()), processes_of(tmp_path)) == ([], [])


@pytest.mark.slow
def test_the_command_is_killed(tmp_path: Path) -> None:
    """Even if the command is killed, the process that tries ends what runs and removes its files."""
    words = [sys.executable, "-m", "bitproof", "facts", "D8", "--json"]
    process = subprocess.Popen(words, cwd=tmp_path, env={**os.environ, "TMPDIR": str(tmp_path)})
    wait_until(lambda: len(processes_of(tmp_path)) >= 4)
    process.kill()
    process.wait()
    wait_until(lambda: not processes_of(tmp_path) and not list(tmp_path.iterdir()), seconds=10)


def test_the_page_is_up_to_date() -> None:
    """docs/facts.md is what the catalogue says."""
    update = "python -c 'from bitproof.facts.catalogue import page; print(page(), end=\"\")' > docs/facts.md"
    assert (ROOT / "docs" / "facts.md").read_text() == page(), f"update it: {update}"


def test_the_catalogue() -> None:
    """Ids are pinned, since others refer to them; texts are whole sentences, and a snippet is short and plain PyTorch."""
    assert [*TITLES] == [*(f"D{n}" for n in range(1, 13)), *(f"C{n}" for n in range(1, 11))]
    for fact in FACTS:
        assert fact.topic == ("determinism" if fact.id.startswith("D") else "checkpoints")
        for text in (fact.statement, fact.remedy):
            assert text.endswith((".", ".)")), (fact.id, text)
        assert "bitproof" in fact.remedy
        lines = [line for line in fact.snippet.splitlines() if line.strip()]
        assert len(lines) <= 36, fact.id
        assert max(map(len, fact.program.splitlines())) <= 120, fact.id
        imported = {
            name.name if isinstance(node, ast.Import) else node.module
            for node in ast.walk(ast.parse(fact.snippet))
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in node.names
        }
        assert not any(str(name).startswith("bitproof") for name in imported), fact.id
        assert "print(" in fact.snippet, fact.id


def test_choosing() -> None:
    """Facts are chosen by id and topic, each once, in the catalogue's order."""
    assert choose() == list(FACTS)
    assert [fact.id for fact in choose(["c3", "D1", "C3"])] == ["D1", "C3"]
    assert [fact.id for fact in choose(["C3", "D1"], "checkpoints")] == ["C3"]
    with pytest.raises(UsageError, match="there is no fact 'Q1'"):
        choose(["Q1"])


@pytest.mark.slow
@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: fact.id)
def test_a_snippet_is_a_script(fact: Fact, tmp_path: Path) -> None:
    """Copied into a file, each snippet runs in a plain interpreter and prints what it found."""
    (tmp_path / "snippet.py").write_text(fact.snippet)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "snippet.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.strip().splitlines()) >= 1
