"""`bitproof data`: look at how training data is read."""

from typing import Annotated

import typer

from bitproof.cli.command import add
from bitproof.cli.output import print_json, print_lines

app = typer.Typer(help="Look at how training data is read.", no_args_is_help=True)


@app.callback()
def data() -> None:
    """Look at how training data is read."""


def check(
    target: Annotated[
        str, typer.Argument(help="FILE.py:NAME or MODULE:NAME of a loader, a data set, or a function that returns one.")
    ],
    first: Annotated[str, typer.Option(help="RANKSxWORKERS.")] = "1x0",
    second: Annotated[str, typer.Option(help="RANKSxWORKERS to compare with.")] = "2x2",
    batches: Annotated[int, typer.Option(min=1, help="Global batches to read under each.")] = 20,
    batch_size: Annotated[int, typer.Option(min=1, help="Global batch, where the target is a data set.")] = 8,
    seed: Annotated[int, typer.Option(help="Seed, where the target is not a bitproof Loader.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
) -> None:
    """Read the same batches under two topologies, and name the first sample that differs.

    Exit status: 0 identical, 1 different, 2 the target or an option is wrong.
    """
    from bitproof.data.audit import Topology, audit  # noqa: PLC0415 - torch is imported for this command only
    from bitproof.data.target import failures_named, load_target  # noqa: PLC0415

    topologies = Topology.parse(first), Topology.parse(second)
    checked = load_target(target, batch_size=batch_size, seed=seed)
    with failures_named(target, "reading its samples"):
        found = audit(checked.loader, *topologies, batches=batches)
    # A loader that is no remedy is not recommended.
    advice = checked.advice if found.difference is None else found.advice
    if as_json:
        print_json(found.to_dict() | {"advice": advice})
    else:
        print_lines([str(found), *(f"  {line}" for line in advice)])
    raise typer.Exit(0 if found.difference is None else 1)


add(app, check)
