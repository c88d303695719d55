"""A claim about PyTorch training, with the code that tries it here."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Verdict = Literal["holds", "does-not-hold", "cannot-be-tried"]
Topic = Literal["determinism", "checkpoints"]
Difficulty = Literal[1, 2, 3]
Values = Mapping[str, Any]
"""What the names of a snippet stood for at its end: numbers, texts, and lists and dicts of these."""


@dataclass(frozen=True)
class Outcome:
    """What became of a claim on this machine.

    Args:
        verdict: whether it holds.
        seen: what was measured here, or why it cannot be tried; one or two sentences.
        values: the numbers behind it, by the snippet's names; none if it could not be tried.
    """

    verdict: Verdict
    seen: str
    values: Values = field(default_factory=dict)


Judge = Callable[[Values], tuple[Verdict, str]]


@dataclass(frozen=True)
class Fact:
    """One claim. What is shown is what runs: the verdict comes from the values that the snippet leaves behind.

    Args:
        id: such as ``D7``: the promise to those who refer to it.
        title: a few words.
        topic: what it is about.
        difficulty: 1 (known to many) to 3 (known to few).
        statement: the claim, in one or two sentences.
        snippet: some lines of plain PyTorch that a reader can copy and run.
        remedy: what to do, with bitproof.
        judge: verdict and what was seen, from the snippet's values; pure.
        remedy_snippet: the remedy as lines that go on where the snippet ends; they run too.
        other_python: the snippet also runs in a second interpreter, whose values are then ``other``.
    """

    id: str
    title: str
    topic: Topic
    difficulty: Difficulty
    statement: str
    snippet: str
    remedy: str
    judge: Judge
    remedy_snippet: str = ""
    other_python: bool = False

    @property
    def program(self) -> str:
        """What runs."""
        return f"{self.snippet}\n{self.remedy_snippet}"


def holds_if(condition: bool) -> Verdict:
    """Return the verdict on a claim that was tried."""
    return "holds" if condition else "does-not-hold"
