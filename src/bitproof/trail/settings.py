"""How to record: known to the launcher, which does not import torch."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Settings:
    """How to record.

    Args:
        trail: the folder.
        leg: the leg's number, from 1.
        every: beyond the latest 1,000 steps, details are kept for each ``every``-th step.
        from_start: the recorder was there before the script's own first line, so what it did not see was not done.
    """

    trail: Path
    leg: int = 1
    every: int = 100
    from_start: bool = True
