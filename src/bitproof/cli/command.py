"""How a command is declared: its help is written as its examples are."""

import inspect
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand

if TYPE_CHECKING:
    from collections.abc import Sequence

_PLACEHOLDERS = {"path": "PATH", "int": "N", "float": "NUMBER", "str": "TEXT"}
_TYPE = re.compile(r" <(?:list\[)?(\w+)(?: range)?\]?>$")
_BRACES = re.compile(r"^\{(.*)\}(?:\.\.\.)?$")
_OPTIONAL = re.compile(r"^\[(\[.*)\]\.\.\.$")
"""A placeholder with brackets and dots of its own, in those that click puts around it."""


class Command(TyperCommand):
    """A command whose usage line and placeholders are those of its examples: ``-- COMMAND…``, ``--step N``."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the pieces of the usage line."""
        pieces = [_BRACES.sub(lambda found: _argument(found[1]), piece) for piece in super().collect_usage_pieces(ctx)]
        return [_OPTIONAL.sub(r"\1", piece) for piece in pieces]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and options, a name or a value's placeholder in place of the type."""
        write = formatter.write_dl

        def write_named(rows: "Sequence[tuple[str, str]]", *args: Any, **kwargs: Any) -> None:
            write([(_named(name), text) for name, text in rows], *args, **kwargs)

        formatter.write_dl = write_named
        super().format_options(ctx, formatter)
        formatter.write_dl = write


def _named(name: str) -> str:
    found = _TYPE.search(name)
    if found is None:
        return name
    name = name[: found.start()]
    is_option = re.match(r"--?\w", name) is not None
    return f"{name} {_PLACEHOLDERS.get(found[1], found[1].upper())}" if is_option else _argument(name)


def _argument(name: str) -> str:
    return name.upper() if name.isidentifier() else name


def add(app: typer.Typer, function: Callable[..., None]) -> None:
    """Give an app a command under its function's name, its docstring as help.

    What follows a training command's first word is the training command's, with or without ``--`` before it.

    Args:
        app: gets it.
        function: does it.
    """
    takes_command = "command" in inspect.signature(function).parameters
    settings = {"allow_interspersed_args": False} if takes_command else {}
    app.command(function.__name__, cls=Command, help=_help(function), context_settings=settings)(function)


def _help(function: Callable[..., None]) -> str:
    """Return a command's docstring, with its examples a line each, as they are typed."""
    text, _, examples = (inspect.getdoc(function) or "").partition("Examples:\n")
    lines = [f"  {line.strip()}" for line in examples.splitlines() if line.strip()]
    # A paragraph that begins with a backspace is not wrapped.
    return text + "\b\nExamples:\n" + "\n".join(lines) if lines else text
