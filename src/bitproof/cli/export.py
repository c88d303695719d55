"""``bitproof export``."""

from pathlib import Path
from typing import Annotated

import typer


def export(
    run: Annotated[Path, typer.Argument(help="A run's folder.")],
    target: Annotated[Path, typer.Argument(help="The file to write, such as model.safetensors.")],
    step: Annotated[int | None, typer.Option(help="Of the checkpoint; by default the newest good one.")] = None,
    part: Annotated[str, typer.Option(help="The name under which the run has the module.")] = "model",
    json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON and nothing else.")] = False,
) -> None:
    """Write the weights of a checkpoint as a safetensors file, under the names of the module's state_dict.

    Examples:
      bitproof export runs/digits model.safetensors

      bitproof export runs/digits ema.safetensors --part ema --step 120
    """
    from bitproof.cli.output import print_json, print_lines  # noqa: PLC0415  # --help must be quick
    from bitproof.run.checkpoints import export as write  # noqa: PLC0415
    from bitproof.store import Store  # noqa: PLC0415

    count = write(Store(run, create=False), target, step=step, part=part)
    if json:
        print_json({"format": 1, "path": str(target), "tensors": count})
    else:
        print_lines([f"wrote {count} tensors to {target}"])
