"""The list of hazards, and the page about it."""

import ast
from pathlib import Path

from bitproof.doctor.catalogue import BY_CODE, CODES, page
from bitproof.facts.catalogue import BY_ID

ROOT = Path(__file__).parents[2]


def test_the_page_is_up_to_date() -> None:
    """docs/doctor.md is what the catalogue says."""
    update = "python -c 'from bitproof.doctor.catalogue import page; print(page(), end=\"\")' > docs/doctor.md"
    assert (ROOT / "docs" / "doctor.md").read_text("utf-8") == page(), f"update it: {update}"


def test_codes_are_unique_and_complete() -> None:
    """Each code is there once, with a meaning, its evidence and a remedy in whole sentences."""
    assert len(BY_CODE) == len(CODES)
    for code in CODES:
        for text in (code.meaning, code.evidence, code.remedy):
            assert text[0].isupper(), (code.code, text)
            assert text.endswith("."), (code.code, text)


def test_every_code_has_a_rule_and_every_rule_a_code() -> None:
    """No rule makes an unknown code, and no code is without a rule."""
    texts = {
        node.value
        for path in (ROOT / "src" / "bitproof" / "doctor" / "rules").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert set(BY_CODE) <= texts


def test_facts_exist() -> None:
    """Every fact that a hazard refers to is one that `bitproof facts` runs."""
    assert {code.fact for code in CODES if code.fact} <= set(BY_ID)


def test_codes_are_pinned() -> None:
    """A code that is taken away or renamed breaks those who read the JSON."""
    assert [(code.code, code.fact) for code in CODES] == [
        ("not-seeded", None),
        ("seeded-after-model", None),
        ("ranks-share-stream", "D4"),
        ("workers-share-stream", "D10"),
        ("generator-not-saved", "C9"),
        ("validation-draws", "C9"),
        ("recompute-without-rng", "D11"),
        ("deterministic-set-late", "D6"),
        ("deterministic-half", "D6"),
        ("cublas-variable-late", "D6"),
        ("cudnn-rnn-dropout", "D9"),
        ("persistent-workers-epoch", None),
        ("order-from-set", None),
        ("checkpoint-in-place", "C6"),
        ("checkpoint-half-precision", None),
        ("scheduler-not-saved", "C2"),
        ("scaler-not-saved", "C8"),
    ]
