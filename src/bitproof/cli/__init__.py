"""The command line: one file a command; parse, call, print, no logic."""

from bitproof.cli.main import main

__all__ = ["main"]
