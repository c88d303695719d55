"""Warnings that PyTorch gives where it was asked for deterministic algorithms and has none."""

import warnings
from typing import Any

from bitproof.doctor.watch.watch import Watch
from bitproof.trail.probes.patching import wrap

_SAID = "does not have a deterministic implementation"


def attach(watch: Watch) -> None:
    """Watch warnings as they are shown."""

    def make(original: Any) -> Any:
        def showwarning(message: Any, *args: Any, **kwargs: Any) -> Any:
            if _SAID in str(message):
                watch.say_once("no-deterministic-way", {"operation": str(message).partition(" ")[0]})
            return original(message, *args, **kwargs)

        return showwarning

    wrap(warnings, "showwarning", make)
