"""Optimizer steps: PyTorch's global step hooks."""

from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from bitproof.trail.probes.patching import Detach
from bitproof.trail.recorder import Recorder


def attach(recorder: Recorder) -> Detach:
    """Watch every optimizer, also those below a trainer's wrapper."""

    def say_compiled() -> None:
        recorder.note_unseen("an optimizer step that torch.compile has compiled")

    # What torch._dynamo.assume_constant_result() does, without importing torch._dynamo, which takes seconds: this is
    # called once, while a step is compiled, and leaves nothing in the graph.
    say_compiled._dynamo_marked_constant = True  # type: ignore[attr-defined]  # noqa: SLF001

    def before(
        optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if torch.compiler.is_compiling():
            say_compiled()
            return None
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        recorder.update_begins(optimizer, closure=closure is not None)
        if closure is None:
            return None

        def watched() -> Any:
            result = closure()
            recorder.closure_returned(optimizer)
            return result

        if len(args) > 1:
            return (args[0], watched, *args[2:]), kwargs
        return args, {**kwargs, "closure": watched}

    def after(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: ARG001
        if not torch.compiler.is_compiling():
            recorder.update_ends()

    handles = [register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)]

    def detach() -> None:
        for handle in handles:
            handle.remove()

    return detach
