"""Make a cause: its remedy comes from the catalogue."""

from collections.abc import Iterable

from bitproof.compare.causes.catalogue import BY_CODE
from bitproof.compare.verdict import Cause, Confidence

Made = Cause


def made(
    code: str,
    confidence: Confidence,
    summary: str,
    evidence: Iterable[str],
    where: str | None,
    remedy: str | None = None,
) -> Made:
    """Make a cause of a known code, without empty evidence."""
    return Cause(
        code=code,
        confidence=confidence,
        summary=summary,
        evidence=[line for line in evidence if line],
        remedy=remedy or BY_CODE[code].remedy,
        where=where,
    )
