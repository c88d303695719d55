"""Backward passes: ``torch.autograd.backward``, which ``Tensor.backward`` calls too, and ``torch.autograd.grad``."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from bitproof.trail.probes.patching import Detach, all_of, wrap
from bitproof.trail.recorder import Recorder


def attach(recorder: Recorder) -> Detach:
    """Watch every backward pass; one that accumulates into ``.grad`` is a micro-step."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(tensors: torch.Tensor | Sequence[torch.Tensor], *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return original(tensors, *args, **kwargs)
            recorder.backward_begins([tensors] if isinstance(tensors, torch.Tensor) else list(tensors))
            try:
                return original(tensors, *args, **kwargs)
            finally:
                recorder.backward_ends()

        return backward

    def make_grad(original: Callable[..., Any]) -> Callable[..., Any]:
        def grad(outputs: torch.Tensor | Sequence[torch.Tensor], *args: Any, **kwargs: Any) -> Any:
            if not torch.compiler.is_compiling():
                recorder.gradient_asked([outputs] if isinstance(outputs, torch.Tensor) else outputs)
            return original(outputs, *args, **kwargs)

        return grad

    return all_of([wrap(torch.autograd, "backward", make), wrap(torch.autograd, "grad", make_grad)])
