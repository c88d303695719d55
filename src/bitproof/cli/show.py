"""``bitproof show``."""

from pathlib import Path
from typing import Annotated

import typer


def show(
    run: Annotated[Path, typer.Argument(help="A run's folder.")],
    step: Annotated[int | None, typer.Option(help="Of the checkpoint; by default the newest good one.")] = None,
    history: Annotated[
        bool, typer.Option("--history", help="Show what run.log was given instead; with --step, at that step.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON and nothing else.")] = False,
) -> None:
    """Show what one checkpoint holds, and what the crashes of the run have proven.

    Examples:
      bitproof show runs/digits --step 120
      bitproof show runs/digits --history
    """
    from bitproof.cli.output import facts_line, print_json, print_lines  # noqa: PLC0415  # --help must be quick
    from bitproof.run.checkpoints import opened  # noqa: PLC0415
    from bitproof.run.contents import contents  # noqa: PLC0415
    from bitproof.run.proof import Legs  # noqa: PLC0415
    from bitproof.store import Store  # noqa: PLC0415

    store = Store(run, create=False)
    if history:
        _show_history(run, step, as_json=json)
        return
    checkpoint = opened(store, step)
    tensors = {name: checkpoint.tensors.describe(name) for name in checkpoint.tensors}
    parts = contents(checkpoint.document)
    legs = Legs.stored(run)
    if json:
        described = {
            name: {"dtype": str(dtype).removeprefix("torch."), "shape": list(shape), "xxh3_128": digest}
            for name, (dtype, shape, digest) in tensors.items()
        }
        print_json({"format": 1, "checkpoint": checkpoint.commit, "parts": parts, "tensors": described, "legs": legs})
        return
    facts = facts_line(checkpoint.facts)
    lines = [f"step {checkpoint.step}, saved at {checkpoint.commit.saved_at}  {facts}"]
    if parts:
        kinds = [f"{one.kind} ({one.type})" if one.type else one.kind for one in parts]
        names, wide = max(len(one.name) for one in parts), max(map(len, kinds))
        lines.append("parts:")
        lines += [
            f"  {one.name:<{names}}  {kind:<{wide}}  {one.counts}" for one, kind in zip(parts, kinds, strict=True)
        ]
    lines.append("tensors:")
    lines += [f"  {name}  {str(d).removeprefix('torch.')}{list(shape)}" for name, (d, shape, _) in tensors.items()]
    print_lines([*lines, "legs:", *(f"  {leg}" for leg in legs)])


def _show_history(run: Path, step: int | None, *, as_json: bool) -> None:
    from bitproof.cli.output import print_json, print_lines  # noqa: PLC0415  # --help must be quick
    from bitproof.run.log import number_of, read_log  # noqa: PLC0415

    found = [one for one in read_log(run) if step in {None, one.step}]
    if as_json:
        rows = [
            {"step": one.step, "epoch": one.epoch, "name": one.name, "value": number_of(one.name, one.value)}
            for one in found
        ]
        print_json({"format": 1, "history": rows})
        return
    lines: dict[tuple[int, int], list[str]] = {}
    for one in found:
        lines.setdefault((one.step, one.epoch), []).append(f"{one.name}={one.value}")
    print_lines(
        [f"step {at:<9} epoch {epoch:<5} {'  '.join(values)}" for (at, epoch), values in lines.items()]
        or ["nothing was logged"]
    )
