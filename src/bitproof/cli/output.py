"""Print a verdict as asked for."""

import sys
from pathlib import Path

import typer

from bitproof.compare.verdict import Verdict, exit_status, to_json


def show(verdict: Verdict, *, as_json: bool, page: Path | None, verbose: bool) -> None:
    """Print a verdict, write its page, and exit with its status."""
    if page is not None:
        from bitproof.report import html  # noqa: PLC0415  # an extra

        html.write(verdict, page)
        typer.echo(f"wrote {page}", err=True)
    if as_json:
        sys.stdout.write(to_json(verdict).decode() + "\n")
    else:
        from rich.console import Console  # noqa: PLC0415  # --help must be quick

        from bitproof.report.terminal import render  # noqa: PLC0415

        render(verdict, Console(), verbose=verbose)
    raise typer.Exit(exit_status(verdict))
