"""The page on proving says what is true."""

import re

import typer

from bitproof.cli.main import app
from bitproof.prove.orders import STEPS_AFTER_SIGNAL
from bitproof.prove.plan import parse
from bitproof.prove.process import GRACE
from kit.proofs import ROOT

PAGE = (ROOT / "docs" / "prove.md").read_text()


def test_options_exist() -> None:
    """Every option that the page names is one of the command."""
    group = typer.main.get_command(app)
    known = {option for p in group.commands["prove"].params for option in p.opts}  # type: ignore[attr-defined]
    assert set(re.findall(r"`(--[a-z-]+)", PAGE)) - known == {"--standalone"}  # torchrun's


def test_faults_are_read() -> None:
    """Every fault that the page names is read."""
    named = re.findall(r"`(?:--kill )?(\d[\d.,]*|every|during-save[:a-z0-9]*)`", PAGE)
    assert len(named) >= 6
    for text in named:
        parse(text)


def test_numbers() -> None:
    """The limits on the page are those of the code."""
    assert f"given {GRACE:g} seconds and {STEPS_AFTER_SIGNAL} more steps" in PAGE
