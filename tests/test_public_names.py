"""The public names and the command line's options, pinned: a change here is a change for every user."""

import typer.main

import bitproof
from bitproof.cli.main import app

OPTIONS = {
    "causes": {"--json", "--verbose", "-v", "codes"},
    "data": set(),
    "diff": {"--html", "--json", "--part", "--verbose", "-v", "other", "reference"},
    "facts": {"--json", "--other-python", "--topic", "ids"},
    "quiz": {"--count", "--difficulty", "--json", "--lang", "--other-python", "--seed", "--topic"},
    "doctor": {
        "--json",
        "--list",
        "--output",
        "--quiet",
        "--steps",
        "--timeout",
        "--verbose",
        "--work",
        "-q",
        "-v",
        "command",
    },
    "prove": {
        "--crashes",
        "--deterministic",
        "--html",
        "--jobs",
        "--json",
        "--kill",
        "--no-control",
        "--output",
        "--quiet",
        "--reference",
        "--resume-args",
        "--resume-command",
        "--seed",
        "--signal",
        "--steps",
        "--timeout",
        "--verbose",
        "--work",
        "-j",
        "-q",
        "-v",
        "command",
    },
    "export": {"--json", "--part", "--step", "run", "target"},
    "gc": {"--json", "--quarantine", "run"},
    "ls": {"--json", "run"},
    "price": {
        "--json",
        "--output",
        "--quiet",
        "--rounds",
        "--steps",
        "--timeout",
        "--warm-up",
        "--whole",
        "--work",
        "-q",
        "command",
    },
    "restore": {"--json", "--step", "run"},
    "show": {"--history", "--json", "--step", "run"},
    "verify": {"--json", "run"},
    "record": {"--append", "--deterministic", "--every", "--force", "--output", "--seed", "-f", "-o", "command"},
}


def test_public_names() -> None:
    """``bitproof.__all__`` is sorted, complete and importable."""
    assert bitproof.__all__ == ["BitproofError", "Every", "Keep", "Run", "__version__", "deterministic", "recording"]
    assert bitproof.__all__ == sorted(bitproof.__all__)
    for name in bitproof.__all__:
        assert getattr(bitproof, name) is not None


def test_a_name_that_is_not_there() -> None:
    """An unknown name raises as from any module, and says which."""
    try:
        bitproof.nothing  # noqa: B018
    except AttributeError as error:
        assert str(error) == "module 'bitproof' has no attribute 'nothing'"  # noqa: PT017  # ruff sees no raises here
    else:
        raise AssertionError


def test_commands_and_options() -> None:
    """Each command has these options and arguments, and no other."""
    group = typer.main.get_command(app)
    commands = group.commands  # type: ignore[attr-defined]
    found = {
        name: {text for p in command.params for text in (*p.opts, *p.secondary_opts)}
        for name, command in commands.items()
    }
    assert found == OPTIONS
