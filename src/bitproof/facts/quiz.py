"""Facts as questions: four options, of which the right one is what just ran."""

import random
import string
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from typing import Annotated, Any, Final

import msgspec

from bitproof.errors import UsageError
from bitproof.facts.catalogue import BY_ID, choose
from bitproof.facts.fact import Fact, Outcome, Topic, Verdict

LANGUAGES: Final = ("en", "tr", "ru")
DIFFICULTIES: Final = (1, 2, 3)
OPTIONS: Final = 4


@dataclass(frozen=True)
class Question:
    """What is asked about a fact. In every language the first option is the right one if the fact's verdict is ``when``.

    Args:
        id: the fact's, and a letter.
        when: the verdict for which the texts say why an option is right or wrong.
        otherwise: the option that is right with the other verdict; without one, the question is left out then.
    """

    id: str
    when: Verdict = "holds"
    otherwise: int | None = None

    @property
    def fact(self) -> Fact:
        """The fact it is about."""
        return BY_ID[self.id[:-1]]


QUESTIONS: tuple[Question, ...] = (
    Question("D1a"),
    Question("D1b"),
    Question("D2a"),
    Question("D3a"),
    Question("D4a"),
    Question("D4b"),
    Question("D5a"),
    Question("D6a", otherwise=1),
    Question("D6b"),
    Question("D7a", otherwise=1),
    Question("D8a", otherwise=1),
    Question("D8b"),
    Question("D9a", otherwise=1),
    Question("D10a", otherwise=1),
    Question("D11a"),
    Question("D11b"),
    Question("D12a", otherwise=1),
    Question("C1a"),
    Question("C2a", when="does-not-hold", otherwise=1),
    Question("C2b", when="does-not-hold"),
    Question("C3a"),
    Question("C4a"),
    Question("C4b"),
    Question("C5a"),
    Question("C6a"),
    Question("C6b"),
    Question("C7a"),
    Question("C7b"),
    Question("C8a"),
    Question("C8b"),
    Question("C9a"),
    Question("C10a"),
    Question("C10b"),
)


class Text(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A question in one language."""

    ask: str
    seen: str
    """What ran here; names in braces are the snippet's."""
    options: Annotated[tuple[tuple[str, str], ...], msgspec.Meta(min_length=OPTIONS, max_length=OPTIONS)]
    """Each with why it is right or wrong."""


class Words(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is said around the questions."""

    prompt: str
    keys: str
    right: str
    wrong: str
    seen: str
    wait: str
    left_out: str
    holds: str
    does_not_hold: str
    cannot_be_tried: str
    nothing: str
    score: str
    total: str
    again: str
    determinism: str
    checkpoints: str

    def verdict(self, verdict: Verdict) -> str:
        """Return a verdict in this language."""
        return {"holds": self.holds, "does-not-hold": self.does_not_hold}.get(verdict, self.cannot_be_tried)

    def topic(self, topic: Topic) -> str:
        """Return a topic in this language."""
        return self.determinism if topic == "determinism" else self.checkpoints


class Language(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All texts of one language."""

    words: Words
    questions: dict[str, Text]


class Option(msgspec.Struct, frozen=True):
    """One of four answers."""

    text: str
    right: bool
    why: str
    """Why it is right or wrong; empty if the fact turned out otherwise here than what was written for."""


class Asked(msgspec.Struct, frozen=True):
    """A question as it is put to someone."""

    id: str
    fact: str
    topic: Topic
    difficulty: int
    question: str
    options: tuple[Option, ...]
    seen: str


class LeftOut(msgspec.Struct, frozen=True):
    """A question that has no right answer on this machine."""

    id: str
    fact: str
    verdict: Verdict
    seen: str


def read(language: str) -> Language:
    """Return the texts of a language.

    Raises:
        UsageError: there are none.
    """
    if language not in LANGUAGES:
        msg = f"--lang {language}: there is no such language. Languages: {', '.join(LANGUAGES)}."
        raise UsageError(msg)
    text = (files("bitproof.facts") / "languages" / f"{language}.toml").read_bytes()
    return msgspec.toml.decode(text, type=Language)


def draw(seed: int, *, topic: str | None = None, difficulty: int | None = None) -> list[Question]:
    """Return the questions of a topic and difficulty, shuffled.

    Raises:
        UsageError: there is no such topic, or no question of that difficulty about it.
    """
    facts = choose(topic=topic)
    found = [
        question for question in QUESTIONS if question.fact in facts and difficulty in {None, question.fact.difficulty}
    ]
    if not found:
        msg = f"there is no question about {topic} of difficulty {difficulty}. Leave out --difficulty."
        raise UsageError(msg)
    random.Random(f"questions {seed}").shuffle(found)
    return found


def put(question: Question, outcome: Outcome, language: Language, seed: int) -> Asked | LeftOut:
    """Return a question with its options shuffled and the right one marked; or why it cannot be asked here."""
    fact = question.fact
    right = 0 if outcome.verdict == question.when else question.otherwise
    if right is None or outcome.verdict == "cannot-be-tried":
        return LeftOut(question.id, fact.id, outcome.verdict, outcome.seen)
    text = language.questions[question.id]
    as_written = outcome.verdict == question.when
    options = [
        Option(option, number == right, why if as_written else "") for number, (option, why) in enumerate(text.options)
    ]
    random.Random(f"options {seed} {question.id}").shuffle(options)
    seen = _Formatter().vformat(text.seen, (), outcome.values)
    return Asked(question.id, fact.id, fact.topic, fact.difficulty, text.ask, tuple(options), seen)


class _Formatter(string.Formatter):
    """Writes lists and dicts without brackets."""

    def format_field(self, value: Any, format_spec: str) -> Any:
        """Return a value as text."""
        if isinstance(value, dict):
            return "; ".join(f"{key}: {self.format_field(inner, '')}" for key, inner in value.items()) or "–"
        if isinstance(value, (list, tuple)):
            return ", ".join(self.format_field(inner, "") for inner in value) or "–"
        return super().format_field(value, format_spec)


def facts_of(questions: Iterable[Question]) -> list[Fact]:
    """Return the facts that questions are about, each once, in the order in which they are needed."""
    return list({question.fact.id: question.fact for question in questions}.values())
