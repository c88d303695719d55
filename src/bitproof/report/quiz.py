"""The quiz as text on a terminal."""

from collections import Counter
from dataclasses import dataclass, field

from bitproof.facts.quiz import DIFFICULTIES, Asked, LeftOut, Words
from bitproof.report.page import Page

LETTERS = "abcd"


@dataclass
class Score:
    """How many questions of each topic were answered, and how many rightly."""

    asked: Counter[str] = field(default_factory=Counter)
    right: Counter[str] = field(default_factory=Counter)

    def count(self, question: Asked, *, right: bool) -> None:
        """Count an answer."""
        self.asked[question.topic] += 1
        self.right[question.topic] += right


@dataclass(frozen=True)
class Screen:
    """Prints questions, answers and the score in one language.

    Args:
        page: where to.
        words: of the language.
    """

    page: Page
    words: Words

    @property
    def prompt(self) -> str:
        """What an answer is asked for with, in characters that the console has."""
        return self.page.fitted(self.words.prompt)

    def begin(self) -> None:
        """Say how to answer."""
        self.page.prose((self.words.keys, "dim"))

    def keys(self) -> None:
        """Say it again, to someone who did not."""
        self.page.prose((self.words.keys, "yellow"))

    def question(self, number: int, of: int, asked: Asked) -> None:
        """Print a question and its options."""
        hard = "●" * asked.difficulty + "○" * (len(DIFFICULTIES) - asked.difficulty)
        self.page.gap()
        self.page.line((f"{number}/{of}  {self.words.topic(asked.topic)}  {asked.fact}  {hard}", "dim"))
        self.page.prose((asked.question, "bold"))
        for letter, option in zip(LETTERS, asked.options, strict=True):
            self.page.prose((f"{letter}) ", "cyan"), option.text, indent=2, hanging=3)

    def answer(self, asked: Asked, chosen: int) -> None:
        """Print whether an answer is right, why, and what was seen."""
        option = asked.options[chosen]
        right = next(number for number, other in enumerate(asked.options) if other.right)
        if option.right:
            self._said("✓", "bold green", self.words.right, option.why)
        else:
            self._said("✗", "bold red", f"{LETTERS[chosen]})", option.why)
            self.page.prose(self.words.wrong.format(letter=LETTERS[right]), " ", asked.options[right].why, indent=2)
        self.page.prose((f"{self.words.seen} ({asked.fact}): ", "dim"), asked.seen, indent=2)

    def left_out(self, question: LeftOut) -> None:
        """Say that a question is left out."""
        said = self.words.left_out.format(fact=question.fact, verdict=self.words.verdict(question.verdict))
        self.page.gap()
        self.page.prose((said, "dim"))

    def score(self, score: Score, again: str) -> None:
        """Print the score by topic."""
        self.page.gap()
        if not score.asked.total():
            self.page.line(self.words.nothing)
            return
        for topic in ("determinism", "checkpoints"):
            if score.asked[topic]:
                name = self.words.topic(topic)
                self.page.line(self.words.score.format(topic=name, right=score.right[topic], asked=score.asked[topic]))
        total = self.words.total.format(right=score.right.total(), asked=score.asked.total())
        self.page.line((total, "bold"))
        self.page.prose((self.words.again.format(command=again), "dim"))

    def _said(self, mark: str, style: str, *words: str) -> None:
        self.page.prose((f"{mark} ", style), " ".join(filter(None, words)), indent=0, hanging=2)
