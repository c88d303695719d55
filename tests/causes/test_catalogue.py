"""The list of causes, and the page about it."""

import ast
from pathlib import Path

from bitproof.compare.causes.catalogue import BY_CODE, CODES, page

ROOT = Path(__file__).parents[2]


def test_the_page_is_up_to_date() -> None:
    """docs/causes.md is what the catalogue says."""
    update = "python -c 'from bitproof.compare.causes.catalogue import page; print(page(), end=\"\")' > docs/causes.md"
    assert (ROOT / "docs" / "causes.md").read_text() == page(), f"update it: {update}"


def test_codes_are_unique_and_complete() -> None:
    """Each code is there once, with a finding, its evidence and a remedy in whole sentences."""
    assert len(BY_CODE) == len(CODES)
    for code in CODES:
        for text in (code.finding, code.evidence, code.remedy):
            assert text[0].isupper(), (code.code, text)
            assert text.endswith("."), (code.code, text)


def test_every_code_that_is_made_is_in_the_catalogue_and_the_other_way_round() -> None:
    """No rule makes an unknown code, and no code is without a rule."""
    texts = {
        node.value
        for path in (ROOT / "src" / "bitproof").rglob("*.py")
        if path.name != "catalogue.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert set(BY_CODE) <= texts


def test_codes_are_pinned() -> None:
    """A code that is taken away or renamed breaks those who read the JSON."""
    assert [code.code for code in CODES] == [
        "not-resumed",
        "weights-not-restored",
        "buffers-not-restored",
        "optimizer-not-restored",
        "optimizer-misassigned",
        "hyperparameters-not-restored",
        "schedule-restarted",
        "scaler-not-restored",
        "rng-reseeded",
        "rng-not-restored",
        "rng-shifted",
        "data-restarted",
        "data-skipped",
        "data-repeated",
        "data-reordered",
        "data-changed",
        "accumulation-lost",
        "average-not-restored",
        "other-state-not-restored",
        "mode-not-restored",
        "ranks-share-stream",
        "nondeterministic-op",
        "uninitialized-memory",
        "environment-changed",
        "recompute-changed",
        "torn-checkpoint",
        "incomplete-checkpoint-chosen",
        "stopped-early",
        "trained-too-long",
        "unknown",
    ]
