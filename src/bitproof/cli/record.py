"""``bitproof record``."""

import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

_PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""What schedulers send to the process that they started."""


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
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="Set what makes PyTorch repeat, from the start of each process.")
    ] = False,
    seed: Annotated[
        int | None,
        typer.Option(metavar="N", help="With --deterministic: seed every generator, too, before the script."),
    ] = None,
) -> None:
    """Record the trail of any training command, unchanged.

    The command's own exit status is passed on.

    Examples:
      bitproof record -o a.trail -- python train.py

      bitproof record -o a.trail -- torchrun --nproc-per-node 2 train.py

      bitproof record -o a.trail --append -- python train.py --resume

      bitproof record -o a.trail --deterministic --seed 0 -- python train.py
    """
    from bitproof.determinism import chosen  # noqa: PLC0415  # --help must be quick
    from bitproof.errors import LaunchError  # noqa: PLC0415
    from bitproof.trail.launch import check_command, child_environment, why_nothing  # noqa: PLC0415  # --help must be quick
    from bitproof.trail.reader import claim_folder, missing_folders, read_trail, withdraw_folders  # noqa: PLC0415

    choice = chosen(deterministic=deterministic, seed=seed)
    check_command(command)
    made = missing_folders(output)
    leg = claim_folder(output, append=append, force=force)
    try:
        status = _run(command, child_environment(output, leg=leg, every=every, deterministic=choice))
    except LaunchError:
        withdraw_folders(made)
        raise
    if any(output.glob(f"leg-{leg:03d}.*")):
        legs = [found for found in read_trail(output).legs if found.number == leg]
        ranks = f" on {len(legs)} ranks" if len(legs) > 1 else ""
        typer.echo(f"bitproof: recorded {len(legs[0].steps)} steps{ranks} in {output}", err=True)
    else:
        typer.echo(f"bitproof: nothing recorded: {why_nothing(output, command, leg)}", err=True)
        withdraw_folders(made)
        status = status or 3
    raise typer.Exit(status)


def _run(command: list[str], environment: dict[str, str]) -> int:
    """Run the command in the foreground. It decides what a signal means: Ctrl-C reaches it, the others are passed on."""
    process: subprocess.Popen[bytes] | None = None

    def pass_on(number: int, _frame: FrameType | None) -> None:
        if process is not None:
            process.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in _PASSED_ON}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process = subprocess.Popen(command, env=environment, preexec_fn=_default_signals)  # noqa: PLW1509  # no threads here
        status = process.wait()
    except OSError as error:
        from bitproof.errors import LaunchError  # noqa: PLC0415  # --help must be quick

        msg = f"cannot start the command: {command[0]}: {error.strerror}. Is it a program, or a script with a first line #!…?"
        raise LaunchError(msg) from error
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if status < 0:
        sys.stderr.write(f"bitproof: the command was ended by {signal.Signals(-status).name}\n")
        return 128 - status
    return status


def _default_signals() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
