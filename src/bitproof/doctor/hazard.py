"""One hazard that was found."""

import msgspec


class Hazard(msgspec.Struct, frozen=True):
    """Something that makes two runs differ, or a resume inexact, when its time comes.

    Args:
        code: which of the catalogue's.
        where: the user's ``file:line``, or None where no line is to blame.
        summary: what was seen here.
        remedy: what to do.
        fact: the fact that shows it, for ``bitproof facts``; None if there is none.
    """

    code: str
    where: str | None
    summary: str
    remedy: str
    fact: str | None
