"""Backward passes: ``torch.autograd.backward``, which ``Tensor.backward`` calls too."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from bitproof.trail.probes.patching import Detach, wrap
from bitproof.trail.recorder import Recorder


def attach(recorder: Recorder) -> Detach:
    """Watch every backward pass that accumulates into ``.grad``."""

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

    return wrap(torch.autograd, "backward", make)
