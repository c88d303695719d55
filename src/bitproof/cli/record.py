"""``bitproof record``."""

import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer


def record(
    command: Annotated[list[str], typer.Argument(help="The training command, after --.", metavar="-- COMMAND…")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the trail.")],
    append: Annotated[
        bool, typer.Option("--append", help="Add a leg to a trail that exists: the run goes on.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace a trail that exists.")] = False,
    every: Annotated[
        int, typer.Option(min=1, help="Beyond the latest 1,000 steps, keep per-tensor digests of each N-th step.")
    ] = 100,
) -> None:
    """Record the trail of any training command, unchanged.

    The command's own exit status is passed on.

    Examples:
      bitproof record -o a.trail -- python train.py

      bitproof record -o a.trail -- torchrun --nproc-per-node 2 train.py

      bitproof record -o a.trail --append -- python train.py --resume
    """
    from bitproof.errors import TrailExistsError  # noqa: PLC0415  # --help must be quick
    from bitproof.trail.launch import check_command, child_environment, why_nothing  # noqa: PLC0415
    from bitproof.trail.reader import is_trail, next_leg, read_trail  # noqa: PLC0415

    check_command(command)
    if output.exists() and not output.is_dir():
        msg = f"{output} is a file, and a trail is a folder. Choose another --output."
        raise TrailExistsError(msg)
    leg = next_leg(output)
    if output.exists() and not append:
        if not force:
            msg = f"{output} exists. Add a leg with --append, replace it with --force, or choose another --output."
            raise TrailExistsError(msg)
        if not is_trail(output):
            msg = f"{output} exists and is not a trail; --force replaces only trails. Choose another --output."
            raise TrailExistsError(msg)
        shutil.rmtree(output)
        leg = 1
    output.mkdir(parents=True, exist_ok=True)
    status = _run(command, child_environment(output, leg=leg, every=every))
    if any(output.glob(f"leg-{leg:03d}.*")):
        legs = [found for found in read_trail(output).legs if found.number == leg]
        ranks = f" on {len(legs)} ranks" if len(legs) > 1 else ""
        typer.echo(f"bitproof: recorded {len(legs[0].steps)} steps{ranks} in {output}", err=True)
    else:
        typer.echo(f"bitproof: nothing recorded: {why_nothing(output, command, leg)}", err=True)
        status = status or 3
    raise typer.Exit(status)


def _run(command: list[str], environment: dict[str, str]) -> int:
    """Run the command in the foreground; a Ctrl-C is its own to handle."""
    from bitproof.errors import LaunchError  # noqa: PLC0415  # --help must be quick

    try:
        started = subprocess.Popen(command, env=environment)
    except OSError as error:
        msg = f"cannot start the command: {command[0]}: {error.strerror}. Is it a program, or a script with a first line #!…?"
        raise LaunchError(msg) from error
    with started as process:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            status = process.wait()
        finally:
            signal.signal(signal.SIGINT, before)
    if status < 0:
        sys.stderr.write(f"bitproof: the command was ended by {signal.Signals(-status).name}\n")
        return 128 - status
    return status
