"""Activation checkpointing: what is drawn in a pass that will be computed again."""

from collections.abc import Callable
from typing import Any

import torch
import torch.utils.checkpoint

from bitproof.doctor.watch.watch import Watch
from bitproof.trail.probes.patching import wrap


def attach(watch: Watch) -> None:
    """Watch passes that will be computed again."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def checkpoint(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or not torch.is_grad_enabled():
                return original(*args, **kwargs)
            before = watch.generators()
            result = original(*args, **kwargs)
            drew = sorted(name for name, state in watch.generators().items() if state != before.get(name, state))
            if drew:
                preserve = bool(kwargs.get("preserve_rng_state", True))
                watch.say_once("recompute", {"preserve": preserve, "drew": drew})
            return result

        return checkpoint

    wrap(torch.utils.checkpoint, "checkpoint", make)
