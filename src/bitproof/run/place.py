"""Where a loop is: the epoch, the pass inside it, and whether it is between two batches."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self


@dataclass
class Place:
    """Where a loop is.

    Args:
        epoch: epochs that are done; outside of epochs, passes that are done.
        done: passes over loaders that are done inside the epoch.
        interrupted: whether the run is to go on inside a pass, after ``done`` others.
    """

    epoch: int = 0
    done: int = 0
    interrupted: bool = False
    in_epochs: bool = False
    in_epoch: bool = False
    in_pass: bool = False
    in_body: bool = False
    entered: int = 0

    @property
    def inside(self) -> bool:
        """Whether the loop is at a place to which no resume leads back."""
        return self.in_epoch or self.in_body

    def to_dict(self) -> dict[str, Any]:
        """Return what is saved."""
        return {"epoch": self.epoch, "done": self.done, "in_pass": self.in_pass}

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Self:
        """Take up what was saved."""
        return cls(epoch=saved["epoch"], done=saved["done"], interrupted=saved["in_pass"])

    def enter_epoch(self) -> None:
        """Note that the body of an epoch begins."""
        self.in_epoch, self.entered = True, 0

    def leave_epoch(self) -> None:
        """Note that the body of an epoch has ended."""
        self.in_epoch = self.interrupted = False
        self.epoch, self.done = self.epoch + 1, 0

    def enter_pass(self) -> int:
        """Note that the loop asks for a pass; return its number inside the epoch, from 0."""
        if not self.in_epoch:
            return 0
        self.entered += 1
        return self.entered - 1

    def begin_pass(self) -> None:
        """Note that the first batch of a pass, or of the rest of one, is fetched."""
        self.in_pass, self.interrupted = True, False

    def end_pass(self) -> None:
        """Note that a pass has ended."""
        self.in_pass = self.in_body = False
        if self.in_epoch:
            self.done += 1
        else:
            self.epoch += 1
