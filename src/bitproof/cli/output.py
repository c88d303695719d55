"""Print a verdict as asked for."""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from bitproof.compare.verdict import Verdict, exit_status, to_json
from bitproof.errors import MissingExtraError, UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from bitproof.run.checkpoints import CheckpointDifference


def check_page(page: Path | None) -> None:
    """Refuse a page that could not be written, before anything long is run.

    Raises:
        UsageError: there is no such folder, or it cannot be written to.
        MissingExtraError: the package that writes it is missing.
    """
    if page is None:
        return
    if find_spec("jinja2") is None:
        raise MissingExtraError("jinja2", "report", "--html")
    folder = page.absolute().parent
    if not folder.is_dir():
        raise UsageError(f"--html {page}: there is no folder {folder}. Make it first, or name another file.")
    if page.is_dir():
        raise UsageError(
            f"--html {page}: expected a file, found a folder. Name a file, such as {page / 'report.html'}."
        )
    if not os.access(page if page.exists() else folder, os.W_OK):
        raise UsageError(f"--html {page}: it cannot be written. Name a file in a folder that can.")


@contextmanager
def reader_may_leave() -> Iterator[None]:
    """Let the reader of standard output (head, less) stop reading: the exit status still tells."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # What is still buffered must go nowhere at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def console() -> "Console":
    """Return a console for standard output that leaves a broken pipe to :func:`reader_may_leave`."""
    from rich.console import Console  # noqa: PLC0415  # --help must be quick

    class Plain(Console):
        def on_broken_pipe(self) -> None:
            """Raise it again: rich would exit with a status that here means a finding."""
            raise  # noqa: PLE0704  # called where it is being handled

    return Plain()


def print_json(answer: Any) -> None:
    """Print an answer as JSON, and nothing else."""
    import msgspec  # noqa: PLC0415  # --help must be quick

    with reader_may_leave():
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(answer), indent=2).decode() + "\n")


def print_lines(lines: Iterable[str]) -> None:
    """Print lines as they are."""
    with reader_may_leave():
        sys.stdout.writelines(f"{line}\n" for line in lines)


def size_text(size: int) -> str:
    """Write a size in bytes as ``1.5 MB``; below 0.1 MB in kB, below 0.1 kB in B. (kB and MB are powers of ten.)"""
    if size >= 100_000:
        return f"{size / 1e6:.1f} MB"
    return f"{size / 1e3:.1f} kB" if size >= 100 else f"{size} B"


def facts_line(facts: Mapping[str, Any]) -> str:
    """Write what was noted with a checkpoint in one line; its environment is left to ``--json`` and ``bitproof diff``."""
    return "  ".join(f"{name}={value}" for name, value in facts.items() if name != "environment")


def show_checkpoints(found: "CheckpointDifference", *, as_json: bool, verbose: bool) -> None:
    """Print how two checkpoints differ, and exit with 0 if they do not, else 1."""
    if as_json:
        print_json(found)
    else:
        from bitproof.report.wording import checkpoint_lines  # noqa: PLC0415  # --help must be quick

        print_lines(checkpoint_lines(found, verbose=verbose))
    raise typer.Exit(0 if found.verdict == "identical" else 1)


def show(verdict: Verdict, *, as_json: bool, page: Path | None, verbose: bool) -> None:
    """Print a verdict, write its page, and exit with its status."""
    if page is not None:
        from bitproof.report import html  # noqa: PLC0415  # an extra

        html.write(verdict, page)
        typer.echo(f"wrote {page}", err=True)
    with reader_may_leave():
        if as_json:
            sys.stdout.write(to_json(verdict).decode() + "\n")
        else:
            from bitproof.report.terminal import render  # noqa: PLC0415  # --help must be quick

            render(verdict, console(), verbose=verbose)
    raise typer.Exit(exit_status(verdict))
