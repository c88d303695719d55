"""``bitproof facts``."""

from pathlib import Path
from typing import Annotated

import typer


def facts(
    ids: Annotated[
        list[str] | None, typer.Argument(help="Only these, with their code and remedy.", metavar="[ID]…")
    ] = None,
    topic: Annotated[str | None, typer.Option(help="Only those about determinism, or about checkpoints.")] = None,
    other_python: Annotated[
        Path | None, typer.Option("--other-python", metavar="PATH", help="An interpreter with another torch, for D3.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON and nothing else.")] = False,
) -> None:
    """Try what is said about PyTorch and reproducible training, on this machine.

    Each claim runs in a process of its own; what is shown is what ran. A claim that does not hold is no error.

    Examples:
      bitproof facts

      bitproof facts D7 C7

      bitproof facts D3 --other-python other-venv/bin/python
    """
    from bitproof.cli.output import console, print_json, reader_may_leave  # noqa: PLC0415  # --help must be quick
    from bitproof.cli.progress import Passing  # noqa: PLC0415
    from bitproof.facts.catalogue import choose  # noqa: PLC0415
    from bitproof.facts.running import Trials, check_other_python  # noqa: PLC0415
    from bitproof.report.facts import fact as show_fact  # noqa: PLC0415
    from bitproof.report.facts import summary  # noqa: PLC0415
    from bitproof.report.page import Page  # noqa: PLC0415

    chosen = choose(ids or (), topic)
    check_other_python(chosen, other_python)
    page = Page(console())
    outcomes = []
    with reader_may_leave(), Trials(chosen, other_python=other_python) as trials, Passing() as passing:
        for number, fact in enumerate(chosen, 1):
            passing.show(f"trying {fact.id} ({number} of {len(chosen)}): {fact.title}")
            outcomes.append(trials.outcome(fact))
            if not json:
                passing.clear()
                show_fact(fact, outcomes[-1], page, code=bool(ids))
    if json:
        print_json(
            {
                "format": 1,
                "facts": [
                    {
                        "id": fact.id,
                        "verdict": outcome.verdict,
                        "seen": outcome.seen,
                        "statement": fact.statement,
                        "topic": fact.topic,
                        "difficulty": fact.difficulty,
                        "snippet": fact.snippet,
                        "remedy": fact.remedy,
                    }
                    for fact, outcome in zip(chosen, outcomes, strict=True)
                ],
            }
        )
    elif len(chosen) > 1:
        with reader_may_leave():
            summary([outcome.verdict for outcome in outcomes], page)
