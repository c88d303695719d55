"""Fixtures of the tests of facts."""

import pytest

from kit.commands import Ran, once


@pytest.fixture(scope="session")
def all_facts(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Return what ``bitproof facts --json`` did."""
    return once(tmp_path_factory, "facts", "--json")


@pytest.fixture(scope="session")
def all_questions(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Return what ``bitproof quiz --json`` did."""
    return once(tmp_path_factory, "quiz", "--json", "--seed", "7")
