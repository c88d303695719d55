"""The quiz: its questions in three languages, and playing it at a terminal."""

import ast
import io
import os
import pty
import re
import select
import string
import subprocess
import sys
import termios
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Self

import msgspec
import pytest
from rich.console import Console

from bitproof.errors import UsageError
from bitproof.facts import quiz
from bitproof.facts.catalogue import BY_ID, FACTS
from bitproof.facts.fact import Outcome
from bitproof.facts.quiz import LANGUAGES, QUESTIONS, Asked, LeftOut, draw, facts_of, put, read
from bitproof.report.quiz import Score, Screen
from bitproof.report.terminal import Page
from kit.commands import Ran
from kit.proofs import bitproof, processes_of, wait_until

EASY = ["--topic", "determinism", "--difficulty", "1", "--seed", "5"]
"""Four questions about three facts that take little time."""


class OneOption(msgspec.Struct, forbid_unknown_fields=True):
    """An option as the JSON has it."""

    text: str
    right: bool
    why: str


class OneQuestion(msgspec.Struct, forbid_unknown_fields=True):
    """A question as the JSON has it."""

    id: str
    fact: str
    topic: Literal["determinism", "checkpoints"]
    difficulty: Literal[1, 2, 3]
    question: str
    options: list[OneOption]
    seen: str


class OneLeftOut(msgspec.Struct, forbid_unknown_fields=True):
    """A question that cannot be asked here."""

    id: str
    fact: str
    verdict: Literal["holds", "does-not-hold", "cannot-be-tried"]
    seen: str


class WholeQuiz(msgspec.Struct, forbid_unknown_fields=True):
    """The answer of ``bitproof quiz --json``."""

    format: Literal[1]
    lang: Literal["en", "tr", "ru"]
    seed: int
    questions: list[OneQuestion]
    left_out: list[OneLeftOut]


@pytest.mark.slow
def test_all_questions_as_json(all_questions: Ran) -> None:
    """All questions come as JSON alone: four options each, one of them right, each with a reason, and what ran filled in."""
    assert (all_questions.answer.status, all_questions.answer.err) == (0, "")
    found = msgspec.json.decode(all_questions.answer.out, type=WholeQuiz, strict=True)
    assert found.seed == 7
    assert len(found.questions) >= 24
    assert {question.id for question in [*found.questions, *found.left_out]} == {question.id for question in QUESTIONS}
    for question in found.questions:
        assert [len(question.options), sum(option.right for option in question.options)] == [4, 1]
        assert all(option.why for option in question.options)
        assert not re.search(r"[{}\[\]]", question.seen), question.seen
    assert {question.fact for question in found.left_out if question.verdict == "cannot-be-tried"} >= {"D3"}
    assert (all_questions.files, all_questions.processes) == ([], [])


@pytest.mark.slow
def test_the_right_options(all_questions: Ran) -> None:
    """What is called right is what just ran, in the words of the question."""
    found = msgspec.json.decode(all_questions.answer.out, type=WholeQuiz)
    right = {question.id: next(o.text for o in question.options if o.right) for question in found.questions}
    assert right["D1a"] == "0.0"
    assert right["C2a"] == "0.025; but the next drop comes at the wrong step"
    assert right["C3a"] == "0"
    assert right["C7a"] == "It loads the wrong number without a word"
    assert right["C8a"] == "65,536"


def test_some_questions_as_json(tmp_path: Path) -> None:
    """Questions come as JSON alone, in the language that was asked for; a count bounds them."""
    answer = bitproof("quiz", *EASY, "--json", "--lang", "ru", "--count", "3", cwd=tmp_path)
    found = msgspec.json.decode(answer.out, type=WholeQuiz, strict=True)
    assert (answer.status, answer.err) == (0, "")
    assert (found.lang, found.seed, len(found.questions), found.left_out) == ("ru", 5, 3, [])
    for number, question in enumerate(found.questions):
        right, asked = _right("ru", number)
        assert ["abcd"[place] for place, option in enumerate(question.options) if option.right] == [right]
        assert question.question == asked
        assert re.search(r"\d", question.seen)


def test_what_is_filled_in_is_there() -> None:
    """Every value that a question shows is a name that its fact's code leaves behind."""
    for question in QUESTIONS:
        left = {
            node.id
            for node in ast.walk(ast.parse(question.fact.program))
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }
        shown = {name.partition("[")[0] for name in _fields(read("en").questions[question.id].seen)}
        assert shown, question.id
        assert shown <= left | ({"other"} if question.fact.other_python else set()), question.id


def test_every_fact_is_asked_about() -> None:
    """There are 24 questions at least, at least one a fact, with ids of their own."""
    assert len(QUESTIONS) >= 24
    assert len({question.id for question in QUESTIONS}) == len(QUESTIONS)
    assert {question.fact.id for question in QUESTIONS} == {fact.id for fact in FACTS}


def _fields(template: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}


@pytest.mark.parametrize("name", LANGUAGES)
def test_languages_agree(name: str) -> None:
    """Each language has every question with four different options and reasons, and fills in the same values."""
    english, language = read("en"), read(name)
    assert set(language.questions) == {question.id for question in QUESTIONS}
    for id_, text in language.questions.items():
        assert _fields(text.seen) == _fields(english.questions[id_].seen), id_
        options = [option for option, _ in text.options]
        assert len(set(options)) == 4, id_
        for said in (text.ask, text.seen, *(why for _, why in text.options)):
            assert said.endswith((".", "?")), (id_, said)
    for field_ in english.words.__struct_fields__:
        assert _fields(getattr(language.words, field_)) == _fields(getattr(english.words, field_)), field_


def test_languages_are_different() -> None:
    """No sentence was left in another language, and each is written in its own letters."""
    texts = {name: read(name) for name in LANGUAGES}
    for question in QUESTIONS:
        asked = {name: text.questions[question.id].ask for name, text in texts.items()}
        assert len(set(asked.values())) == len(LANGUAGES), question.id
        whys = [why for _, why in texts["ru"].questions[question.id].options]
        assert all(re.search("[а-я]", text) for text in (asked["ru"], *whys)), question.id
    assert re.search("[ğışİ]", " ".join(text.ask for text in texts["tr"].questions.values()))


def test_the_right_option_follows_what_ran() -> None:
    """With another verdict another option is right, without reasons that were written for the first; or none is."""
    question = next(question for question in QUESTIONS if question.id == "D7a")
    values = {"one": 1.0, "two": 2.0}
    holds = put(question, Outcome("holds", "", values), read("en"), 1)
    other = put(question, Outcome("does-not-hold", "", values), read("en"), 1)
    assert isinstance(holds, Asked)
    assert isinstance(other, Asked)
    right = [next(option for option in asked.options if option.right) for asked in (holds, other)]
    assert [right[0].text[:11], right[1].text] == ["Two results", "The same bits"]
    assert all(option.why for option in holds.options)
    assert not any(option.why for option in other.options)
    untried = put(question, Outcome("cannot-be-tried", "no"), read("en"), 1)
    assert untried == LeftOut("D7a", "D7", "cannot-be-tried", "no")
    only_one = next(question for question in QUESTIONS if question.id == "C3a")
    assert isinstance(put(only_one, Outcome("does-not-hold", "", {}), read("en"), 1), LeftOut)


def test_shuffling() -> None:
    """The seed decides the order of questions and options, and every place is the right one's now and then."""
    assert draw(1) == draw(1) != draw(2)
    assert {question.id for question in draw(1)} == {question.id for question in QUESTIONS}
    outcome = Outcome("holds", "", {"before": 0, "after": 1})
    question = next(question for question in QUESTIONS if question.id == "C3a")
    places = set()
    for seed in range(40):
        asked = put(question, outcome, read("en"), seed)
        assert isinstance(asked, Asked)
        places.add([option.right for option in asked.options].index(True))
    assert places == {0, 1, 2, 3}


def test_choosing_questions() -> None:
    """Questions are of the topic and the difficulty that was asked for; their facts are tried in the order of need."""
    found = draw(0, topic="checkpoints", difficulty=1)
    assert {question.fact.id for question in found} == {"C3", "C4", "C8"}
    assert [fact.id for fact in facts_of([*found, *found])] == list(dict.fromkeys(q.fact.id for q in found))
    with pytest.raises(UsageError, match="there is no topic 'gpu'"):
        draw(0, topic="gpu")
    with pytest.raises(UsageError, match="no question about None of difficulty 9"):
        draw(0, difficulty=9)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--lang", "de"], "bitproof: --lang de: there is no such language. Languages: en, tr, ru.\n"),
        (["--topic", "gpu"], "bitproof: there is no topic 'gpu'. Topics: determinism, checkpoints.\n"),
        (["--difficulty", "4"], "Error: Invalid value for '--difficulty'"),
        (["--count", "0"], "Error: Invalid value for '--count'"),
        ([*EASY, "--other-python", "x"], "bitproof: --other-python x: none of the chosen facts compares two"),
    ],
)
def test_bad_input(words: list[str], message: str, tmp_path: Path) -> None:
    """What cannot be meant is refused with one message and status 2."""
    answer = bitproof("quiz", *words, cwd=tmp_path)
    assert (answer.status, answer.out) == (2, "")
    assert message in answer.err


def _right(name: str, number: int) -> tuple[str, str]:
    """Return the right letter and the question's text of one of the easy questions."""
    question = draw(5, topic="determinism", difficulty=1)[number]
    outcome = Outcome("holds", "", _Anything())
    asked = put(question, outcome, read(name), 5)
    assert isinstance(asked, Asked)
    return "abcd"[[option.right for option in asked.options].index(True)], asked.question


class _Anything(dict[str, object]):
    def __missing__(self, key: str) -> object:
        return [0.0] * 4


def test_on_a_pipe(tmp_path: Path) -> None:
    """Answers are read line by line from a pipe too; what is none is asked for again; the pipe's end ends with the score."""
    letters = [_right("en", number)[0] for number in range(2)]
    wrong = "dcba"["abcd".index(letters[1])]
    lines = [b"", b"what?", b"\xff\xfe", letters[0].upper().encode(), str("abcd".index(wrong) + 1).encode(), b""]
    words = [sys.executable, "-m", "bitproof", "quiz", *EASY]
    done = subprocess.run(words, cwd=tmp_path, input=b"\n".join(lines), capture_output=True, timeout=200, check=False)
    said = done.stdout.decode()
    assert (done.returncode, done.stderr) == (0, b"")
    assert (
        said.count("a–d or 1–4 answers, q ends.") == 4
    )  # at the start, and for each of three lines that are no answer
    assert said.count("✓ Right. ") == 1
    assert f"✗ {wrong}) " in said
    assert f"No. The right answer is {letters[1]}. " in said
    assert "Determinism: 1 of 2\nTogether: 1 of 2\n" in said
    assert said.endswith(f"The same questions again: bitproof quiz {' '.join(EASY[:4])} --lang en --seed 5\n")
    assert "\x1b" not in said


def test_nothing_answered() -> None:
    """Without an answer there is no score."""
    written = io.StringIO()
    Screen(Page(Console(file=written)), read("en").words).score(Score(), "bitproof quiz")
    assert written.getvalue() == "\nNo question was answered.\n"


@dataclass
class Terminal:
    """A command at a real terminal."""

    words: list[str]
    folder: Path
    more: dict[str, str] = field(default_factory=dict)
    shown: str = ""

    def __enter__(self) -> Self:
        self._master, self._slave = pty.openpty()
        self.before = termios.tcgetattr(self._slave)
        environment = {**os.environ, "TMPDIR": str(self.folder), "TERM": "xterm", **self.more}
        environment.pop("NO_COLOR", None) if "NO_COLOR" not in self.more else None
        self.process = subprocess.Popen(
            [sys.executable, "-c", _AT_TERMINAL, *self.words],
            stdin=self._slave,
            stdout=self._slave,
            stderr=self._slave,
            cwd=self.folder,
            env=environment,
            start_new_session=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)
        os.close(self._slave)

    def wait_for(self, text: str, times: int = 1) -> None:
        """Read until a text was shown so many times."""
        deadline = time.monotonic() + 60
        while self.shown.count(text) < times:
            assert time.monotonic() < deadline, self.shown
            self._read(0.1)

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._master, text.encode())

    def end(self) -> int:
        """Wait for the end, and return the exit status."""
        deadline = time.monotonic() + 60
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.shown
            self._read(0.05)
        self._read(0.05)
        return self.process.returncode

    def settings_are_as_before(self) -> bool:
        """Tell whether the terminal is as it was found."""
        return termios.tcgetattr(self._slave) == self.before

    def _read(self, seconds: float) -> None:
        readable, _, _ = select.select([self._master], [], [], seconds)
        if readable:
            self.shown += os.read(self._master, 65536).decode("utf-8", "replace")


slow = pytest.mark.slow
_AT_TERMINAL = """
import fcntl, runpy, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # so that Ctrl-C at this terminal is a signal
sys.argv[0] = "bitproof"
runpy.run_module("bitproof", run_name="__main__")
"""


@pytest.mark.parametrize("name", LANGUAGES)
def test_played_to_the_end(name: str, tmp_path: Path) -> None:
    """At a terminal, in each language, all questions are answered rightly, counted by topic, and nothing is left behind."""
    words = read(name).words
    prompt = f"{words.prompt}: "
    with Terminal(["quiz", "--lang", name, *EASY], tmp_path) as terminal:
        for number in range(4):
            terminal.wait_for(prompt, number + 1)
            letter, question = _right(name, number)
            assert question in re.sub(r"\r\n|\x1b\[[0-9;]*m", lambda m: " " if m[0] == "\r\n" else "", terminal.shown)
            terminal.type(f"{letter}\n")
        assert terminal.end() == 0
        assert terminal.shown.count(words.right) == 4
        assert words.score.format(topic=words.determinism, right=4, asked=4) in terminal.shown
        assert words.total.format(right=4, asked=4) in terminal.shown
        assert "\x1b[1m" in terminal.shown
        assert terminal.settings_are_as_before()
    assert (list(tmp_path.iterdir()), processes_of(tmp_path)) == ([], [])


@pytest.mark.parametrize("name", [pytest.param("en", marks=slow), "tr", pytest.param("ru", marks=slow)])
def test_ctrl_d(name: str, tmp_path: Path) -> None:
    """Ctrl-D ends with the score so far and status 0, without colour where none is wanted."""
    words = read(name).words
    with Terminal(["quiz", "--lang", name, *EASY], tmp_path, {"NO_COLOR": "1"}) as terminal:
        terminal.wait_for(f"{words.prompt}: ")
        terminal.type(f"{_right(name, 0)[0]}\n")
        terminal.wait_for(f"{words.prompt}: ", 2)
        terminal.type("\x04")
        assert terminal.end() == 0
        assert words.total.format(right=1, asked=1) in terminal.shown
        assert not re.search(r"\x1b\[\d+(;\d+)*m", re.sub(r"\x1b\[[012]?m", "", terminal.shown))
        assert terminal.settings_are_as_before()
    assert (list(tmp_path.iterdir()), processes_of(tmp_path)) == ([], [])


@pytest.mark.parametrize("name", [pytest.param("en", marks=slow), pytest.param("tr", marks=slow), "ru"])
def test_ctrl_c(name: str, tmp_path: Path) -> None:
    """Ctrl-C ends with status 130 and leaves the terminal as it was, no file and no process."""
    with Terminal(["quiz", "--lang", name, *EASY], tmp_path) as terminal:
        terminal.wait_for(f"{read(name).words.prompt}: ")
        terminal.type("\x03")
        assert terminal.end() == 130
        assert "Traceback" not in terminal.shown
        assert "bitproof: interrupted by SIGINT; no process was left behind" in terminal.shown
        assert terminal.settings_are_as_before()
    wait_until(lambda: not processes_of(tmp_path), seconds=5)
    assert list(tmp_path.iterdir()) == []


def test_keys_typed_before_the_question(tmp_path: Path) -> None:
    """What is typed while a fact is being tried answers no question that was not shown yet."""
    words = read("en").words
    with Terminal(["quiz", "--lang", "en", *EASY], tmp_path) as terminal:
        terminal.wait_for(words.wait[:20])
        wrong = next(letter for letter in "abcd" if letter != _right("en", 0)[0])
        terminal.type(f"{wrong}\n")
        terminal.wait_for(f"{words.prompt}: ")
        terminal.type(f"{_right('en', 0)[0]}\n")
        terminal.wait_for(f"{words.prompt}: ", 2)
        terminal.type("\x04")
        assert terminal.end() == 0
        assert words.total.format(right=1, asked=1) in terminal.shown


def test_facts_at_a_terminal(tmp_path: Path) -> None:
    """At a terminal, what is being tried is said and taken away again; verdicts have colour."""
    with Terminal(["facts", "D1", "C5"], tmp_path) as terminal:
        assert terminal.end() == 0
        assert "trying D1 (1 of 2): Addition depends on its order\r\x1b[K" in terminal.shown
        assert "\x1b[1;32m✓ D1" in terminal.shown
        assert BY_ID["C5"].snippet.replace("\n", "\r\n") in terminal.shown
        assert "2 facts: 2 hold" in terminal.shown


def test_question_texts_fit_their_fact() -> None:
    """A question's id begins with its fact's, by which the fact is found."""
    for question in QUESTIONS:
        assert question.fact is BY_ID[question.id[:-1]]
        assert question.id[-1] in "ab"
    assert quiz.OPTIONS == 4
