"""``bitproof quiz``."""

import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from bitproof.facts.quiz import Asked, LeftOut, Question
    from bitproof.report.quiz import Score, Screen

_COUNT = 10
_KEYS = {key: number for keys in ("abcd", "1234") for number, key in enumerate(keys)}


def quiz(
    topic: Annotated[str | None, typer.Option(help="Only about determinism, or about checkpoints.")] = None,
    difficulty: Annotated[int | None, typer.Option(min=1, max=3, help="Only of this difficulty.")] = None,
    lang: Annotated[str, typer.Option(help="en, tr or ru.")] = "en",
    seed: Annotated[int | None, typer.Option(help="Of the shuffling: the same seed asks the same questions.")] = None,
    count: Annotated[
        int | None, typer.Option(min=1, help=f"Questions; by default {_COUNT}, or all with --json.")
    ] = None,
    other_python: Annotated[
        Path | None, typer.Option("--other-python", metavar="PATH", help="An interpreter with another torch, for D3.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the questions as JSON and nothing else.")] = False,
) -> None:
    """Ask about the facts; the right answer is what just ran on this machine.

    Examples:
      bitproof quiz

      bitproof quiz --lang tr --topic checkpoints --count 5
    """
    import random  # noqa: PLC0415  # --help must be quick

    from bitproof.cli.output import console, print_json, reader_may_leave  # noqa: PLC0415
    from bitproof.cli.progress import Passing  # noqa: PLC0415
    from bitproof.facts.quiz import Asked, draw, facts_of, put, read  # noqa: PLC0415
    from bitproof.facts.running import Trials, check_other_python  # noqa: PLC0415
    from bitproof.report.page import Page  # noqa: PLC0415
    from bitproof.report.quiz import Screen  # noqa: PLC0415

    language = read(lang)
    seed = random.randrange(1_000_000) if seed is None else seed
    questions = draw(seed, topic=topic, difficulty=difficulty)
    facts = facts_of(questions)
    check_other_python(facts, other_python)
    with reader_may_leave(), Trials(facts, other_python=other_python) as trials, Passing() as passing:

        def asked(question: "Question") -> "Asked | LeftOut":
            passing.show(language.words.wait)
            outcome = trials.outcome(question.fact)
            passing.clear()
            return put(question, outcome, language, seed)

        if json:
            found = [asked(question) for question in questions[:count]]
        else:
            screen = Screen(Page(console()), language.words)
            score = _play(screen, map(asked, questions), min(count or _COUNT, len(questions)))
            options = {
                "--topic": topic,
                "--difficulty": difficulty,
                "--lang": lang,
                "--seed": seed,
                "--count": count,
                "--other-python": other_python,
            }
            said = [f"{name} {value}" for name, value in options.items() if value is not None]
            screen.score(score, " ".join(["bitproof quiz", *said]))
    if json:
        print_json(
            {
                "format": 1,
                "lang": lang,
                "seed": seed,
                "questions": [question for question in found if isinstance(question, Asked)],
                "left_out": [question for question in found if not isinstance(question, Asked)],
            }
        )


def _play(screen: "Screen", questions: Iterator["Asked | LeftOut"], count: int) -> "Score":
    """Ask until enough is asked, or the one who answers ends it."""
    from bitproof.facts.quiz import Asked  # noqa: PLC0415  # --help must be quick
    from bitproof.report.quiz import Score  # noqa: PLC0415

    score = Score()
    screen.begin()
    while score.asked.total() < count:
        question = next(questions, None)
        if question is None:
            break
        if not isinstance(question, Asked):
            screen.left_out(question)
            continue
        _discard_typed()
        screen.question(score.asked.total() + 1, count, question)
        chosen = _answer(screen)
        if chosen is None:
            break
        screen.answer(question, chosen)
        score.count(question, right=question.options[chosen].right)
    return score


def _discard_typed() -> None:
    """Forget what was typed at a terminal before there was a question; what comes through a pipe is meant."""
    if sys.stdin.isatty():
        termios.tcflush(sys.stdin, termios.TCIFLUSH)


def _answer(screen: "Screen") -> int | None:
    """Read which option is chosen, from 0; None for no more."""
    while True:
        sys.stdout.write(f"{screen.prompt}: ")
        sys.stdout.flush()
        line = sys.stdin.buffer.readline()
        if not line:  # Ctrl-D, or the end of the pipe
            sys.stdout.write("\n")
            return None
        word = line.decode("utf-8", "replace").strip().lower()
        if word == "q":
            return None
        if word in _KEYS:
            return _KEYS[word]
        screen.keys()
