"""Every fact, in order; and the page about them."""

import difflib
from collections.abc import Iterable

from bitproof.errors import UsageError
from bitproof.facts import (
    c01_momentum,
    c02_schedule,
    c03_empty_optimizer,
    c04_scaler_state,
    c05_seeding_again,
    c06_replace,
    c07_flipped_bit,
    c08_loss_scale,
    c09_every_generator,
    c10_optimizer_cast,
    d01_addition_order,
    d02_summing_losses,
    d03_other_release,
    d04_ranks_share_a_seed,
    d05_argmax_tie,
    d06_parallel_adds,
    d07_threads,
    d08_cpu_capability,
    d09_cudnn_dropout,
    d10_worker_count,
    d11_recomputing,
    d12_price,
)
from bitproof.facts.fact import Fact

FACTS: tuple[Fact, ...] = (
    d01_addition_order.FACT,
    d02_summing_losses.FACT,
    d03_other_release.FACT,
    d04_ranks_share_a_seed.FACT,
    d05_argmax_tie.FACT,
    d06_parallel_adds.FACT,
    d07_threads.FACT,
    d08_cpu_capability.FACT,
    d09_cudnn_dropout.FACT,
    d10_worker_count.FACT,
    d11_recomputing.FACT,
    d12_price.FACT,
    c01_momentum.FACT,
    c02_schedule.FACT,
    c03_empty_optimizer.FACT,
    c04_scaler_state.FACT,
    c05_seeding_again.FACT,
    c06_replace.FACT,
    c07_flipped_bit.FACT,
    c08_loss_scale.FACT,
    c09_every_generator.FACT,
    c10_optimizer_cast.FACT,
)
BY_ID = {fact.id: fact for fact in FACTS}
TITLES = {fact.id: fact.title for fact in FACTS}
TOPICS = ("determinism", "checkpoints")


def choose(ids: Iterable[str] = (), topic: str | None = None) -> list[Fact]:
    """Return the facts of these ids (all, if there are none) and of this topic, in the order of the catalogue.

    Raises:
        UsageError: there is no such fact or topic, or none is both.
    """
    wanted = {_known(name) for name in ids}
    if topic is not None and topic not in TOPICS:
        msg = f"there is no topic {topic!r}. Topics: {', '.join(TOPICS)}."
        raise UsageError(msg)
    chosen = [fact for fact in FACTS if (not wanted or fact.id in wanted) and topic in {None, fact.topic}]
    if not chosen:
        msg = f"none of {', '.join(sorted(wanted))} is about {topic}. Leave out --topic, or name other facts."
        raise UsageError(msg)
    return chosen


def _known(name: str) -> str:
    found = name.upper()
    if found in BY_ID:
        return found
    near = difflib.get_close_matches(found, BY_ID, n=1, cutoff=0.3)
    nearest = f" Nearest: {near[0]} ({TITLES[near[0]]})." if near else ""
    msg = f"there is no fact {name!r}. Known: {', '.join(BY_ID)}.{nearest}"
    raise UsageError(msg)


def page() -> str:
    """Return the documentation of every fact, in Markdown."""
    lines = [_INTRODUCTION]
    for topic in TOPICS:
        lines += [f"## {topic.capitalize()}", ""]
        for fact in (fact for fact in FACTS if fact.topic == topic):
            lines += [
                f"### {fact.id}: {fact.title}",
                "",
                fact.statement,
                "",
                "```python",
                fact.snippet.rstrip(),
                "```",
                "",
            ]
            if fact.remedy_snippet:
                lines += [
                    "And with bitproof, going on from there:",
                    "",
                    "```python",
                    fact.remedy_snippet.rstrip(),
                    "```",
                    "",
                ]
            lines += [f"**Remedy**: {fact.remedy}", ""]
            if fact.id in _MEASURED:
                lines += [_MEASURED[fact.id], ""]
    return "\n".join(lines).rstrip() + "\n"


_MEASURED: dict[str, str] = {
    "D3": (
        "**Measured by hand**, 2026-11-30, on an AMD EPYC with AVX2, Linux, Python 3.11: torch 2.13.0 (CPU build) and 2.14.1 (CUDA "
        "build, on the CPU) part at step 3 of 20, with loss 1.1764981746673584 against 1.1764979362487793; 9 losses differ, and the "
        "weights at the end add up to 157.12373580904386 against 157.15097565564793. Behind it is `sinh`: in float32 it gives other "
        "last bits (1 or 2 ULP) for about a quarter of all inputs. Some 470 other operations, layers and optimizers were compared "
        "likewise, and gave the same bits in both. Without `sinh` in it, the program above holds to the last bit in both releases."
    ),
}
"""What was measured where the tests cannot: dated, with the machine."""

_INTRODUCTION = """\
# Facts

What is said about PyTorch and reproducible training, and whether it holds on your machine:

```bash
bitproof facts
bitproof facts D7 C7
bitproof facts --topic checkpoints
```

`bitproof facts D3 --other-python PATH` compares with a second interpreter, which holds another release of PyTorch.

Each fact runs the code that it shows, in a process of its own, and judges by the values that the code leaves behind. The
answer is `holds`, `does-not-hold` or `cannot-be-tried`, with what was seen or why. A claim that does not hold is no error: the
exit status is 0 if all could be run, 2 if the command line is wrong. Nothing is left behind. With an id, the code and
the remedy are printed too; `--json` prints everything for machines:

```text
{"format": 1, "facts": [{"id": "D7", "verdict": "holds", "seen": "…", "statement": "…", "topic": "determinism",
                         "difficulty": 2, "snippet": "…", "remedy": "…"}]}
```

`bitproof quiz` asks the same as questions with four options, in English, Turkish or Russian (`--lang`), and counts by topic:

```bash
bitproof quiz
bitproof quiz --lang tr --topic checkpoints --difficulty 2 --count 5
```

The right answer is what just ran. A question whose fact came out otherwise here has another right answer, or is left out with a
word. `--seed` asks the same questions again, `--json` prints them with options, answers and reasons for other front ends.
"""
