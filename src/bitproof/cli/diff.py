"""``bitproof diff``."""

from pathlib import Path
from typing import Annotated

import typer


def diff(
    reference: Annotated[Path, typer.Argument(help="The trail that is right, or a checkpoint.")],
    other: Annotated[Path, typer.Argument(help="The trail, or checkpoint, to compare with it.")],
    part: Annotated[
        str | None,
        typer.Option(help="Of a run's checkpoint, the module to compare; by default model, or all of two runs'."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON and nothing else.")] = False,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write a page with pictures.")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print all evidence.")] = False,
) -> None:
    """Name the first divergence of two recorded runs, and why; or the tensors in which two checkpoints differ.

    A trail with several legs, or one that starts from a state the reference has in its middle, is taken for a run
    that was resumed. A checkpoint is a run's folder (its newest), FOLDER@STEP, a .safetensors file, or one of
    torch.save, which is read without running code.

    Examples:
      bitproof diff a.trail b.trail

      bitproof diff --json a.trail b.trail | jq .divergence

      bitproof diff runs/digits@120 model.safetensors

      bitproof diff --part ema runs/digits@120 ema.safetensors

      bitproof diff --html page.html a.trail b.trail
    """
    from bitproof.cli.output import check_page, show, show_checkpoints  # noqa: PLC0415  # --help must be quick
    from bitproof.compare.judge import compare_trails  # noqa: PLC0415
    from bitproof.errors import UsageError  # noqa: PLC0415
    from bitproof.run.checkpoints import compare, is_checkpoint  # noqa: PLC0415
    from bitproof.trail.reader import read_trail  # noqa: PLC0415

    if is_checkpoint(reference) and is_checkpoint(other):
        if html is not None:
            raise UsageError("--html is for two trails; two checkpoints have no steps to draw.")
        show_checkpoints(compare(reference, other, part=part), as_json=json, verbose=verbose)
    if part is not None:
        raise UsageError(f"--part {part} is for checkpoints; a trail is compared as a whole.")
    check_page(html)
    show(compare_trails(read_trail(reference), read_trail(other)), as_json=json, page=html, verbose=verbose)
