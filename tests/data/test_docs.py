"""The page on data: its examples run, its tree of errors is the code's."""

import doctest
import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from bitproof.data import errors

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")


def test_examples_run() -> None:
    """The code blocks of the page run, one after another."""
    names: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)

    assert len(blocks) >= 5
    for block in blocks:
        exec(block, names)


@pytest.mark.parametrize("text", [PAGE, errors.__doc__], ids=["page", "module"])
def test_error_tree(text: str) -> None:
    """The tree of errors names each class once, under its base, with the builtin it also is."""
    lines = re.findall(r"[├└]── (\w+) *(?:\((\w+)\))?", text)
    classes = {
        name: cls for name, cls in inspect.getmembers(errors, inspect.isclass) if cls.__module__ == errors.__name__
    }

    assert sorted(name for name, _ in lines) == sorted(classes)
    for name, builtin in lines:
        assert not builtin or builtin in {base.__name__ for base in classes[name].__mro__}


@pytest.mark.parametrize("name", ["order", "mixture", "loader"])
def test_doctests(name: str) -> None:
    """The examples in docstrings print what they say."""
    found = doctest.testmod(importlib.import_module(f"bitproof.data.{name}"))

    assert found.attempted
    assert not found.failed
