"""The entry point: commands put together, errors turned into one message and an exit status."""

import os
import signal
import sys
from types import FrameType

import typer

from bitproof.__about__ import __version__
from bitproof.cli import (
    causes,
    data,
    diff,
    doctor,
    export,
    facts,
    gc,
    ls,
    price,
    prove,
    quiz,
    record,
    restore,
    show,
    verify,
)
from bitproof.cli.command import add
from bitproof.errors import BitproofError

USAGE_STATUS = 2
_ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_process = os.getpid()

app = typer.Typer(
    name="bitproof",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # rich would cost a third of a second at every --help
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help=(
        "Make a PyTorch training run survive any crash, prove that it came back bit for bit, and name what differs.\n\n"
        "Exit status: 0 identical, 1 a finding, 2 the command line or an input is wrong, 3 could not judge, "
        "130 interrupted."
    ),
)


class _Interrupted(BaseException):
    """A signal asked this process to end. Not a KeyboardInterrupt, which typer would turn into a status of its own."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def _version(value: bool) -> None:
    if value:
        typer.echo(f"bitproof {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    del version


for _function in (
    prove.prove,
    record.record,
    diff.diff,
    price.price,
    ls.ls,
    show.show,
    verify.verify,
    restore.restore,
    export.export,
    gc.gc,
    doctor.doctor,
    causes.causes,
    facts.facts,
    quiz.quiz,
):
    add(app, _function)
app.add_typer(data.app, name="data")


def main() -> None:
    """Run the command line."""
    _open_standard_streams()
    for number in _ENDING_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # under nohup it stays ignored
            signal.signal(number, _interrupt)
    try:
        app()
    except BitproofError as error:
        typer.echo(f"bitproof: {error}", err=True)
        sys.exit(USAGE_STATUS)
    except _Interrupted as interrupted:
        name = signal.Signals(interrupted.number).name
        typer.echo(f"bitproof: interrupted by {name}; no process was left behind, and no folder half changed", err=True)
        sys.exit(128 + interrupted.number)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Unwind once; a second Ctrl-C does not disturb the cleaning up."""
    del frame
    if os.getpid() != _process:  # a loader's worker, forked from this process, ends as any other would
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    for ending in _ENDING_SIGNALS:
        signal.signal(ending, signal.SIG_IGN)
    raise _Interrupted(number)


def _open_standard_streams() -> None:
    """Give closed standard streams somewhere to go, so that no file of ours gets their number."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115  # open as long as we run
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
