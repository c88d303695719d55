"""The entry point: commands put together, errors turned into one message and an exit status."""

import sys

import typer

from bitproof.__about__ import __version__
from bitproof.cli import causes, data, diff, prove, record
from bitproof.errors import BitproofError

USAGE_STATUS = 2
INTERRUPTED_STATUS = 130

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


def _version(value: bool) -> None:  # typer calls it so
    if value:
        typer.echo(f"bitproof {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(  # typer declares options so
        False, "--version", callback=_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    del version


app.command("prove")(prove.prove)
app.command("record")(record.record)
app.command("diff")(diff.diff)
app.command("causes")(causes.causes)
app.add_typer(data.app, name="data")


def main() -> None:
    """Run the command line."""
    try:
        app()
    except BitproofError as error:
        typer.echo(f"bitproof: {error}", err=True)
        sys.exit(USAGE_STATUS)
    except KeyboardInterrupt:
        typer.echo("bitproof: interrupted; no process was left behind", err=True)
        sys.exit(INTERRUPTED_STATUS)
