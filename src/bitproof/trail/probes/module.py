"""Calls of outermost modules, and registrations.

``nn.Module.__call__`` is wrapped: PyTorch's global forward hooks are not given keyword arguments, slow down every
inner module, and make ``torch.compile`` warn.
"""

import inspect
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as hooks

from bitproof.trail.probes.patching import Detach, wrap
from bitproof.trail.recorder import Recorder


def attach(recorder: Recorder) -> Detach:
    """Watch calls that come from outside any module, with gradients enabled."""
    inside = threading.local()
    names: weakref.WeakKeyDictionary[type[nn.Module], list[str]] = weakref.WeakKeyDictionary()

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            # First, so that torch.compile traces nothing but the original call.
            if torch.compiler.is_compiling():
                return original(module, *args, **kwargs)
            if getattr(inside, "module", False) or recorder.in_backward or not torch.is_grad_enabled():
                return original(module, *args, **kwargs)
            if torch._C._functorch.peek_interpreter_stack() is not None:  # noqa: SLF001  # there is no public way to ask
                recorder.note_unseen("what enters a module inside a torch.func transform")
                return original(module, *args, **kwargs)
            known = names.get(type(module))
            if known is None:
                known = names[type(module)] = _argument_names(module)
            inside.module = True
            try:
                recorder.module_called(module, known, args, kwargs)
                output = original(module, *args, **kwargs)
                recorder.module_returned(output)
            finally:
                inside.module = False
            return output

        return call

    handles = [
        hooks.register_module_module_registration_hook(
            lambda parent, _name, child: recorder.registry.registered(parent, child)
        ),
        hooks.register_module_parameter_registration_hook(
            lambda parent, _name, parameter: recorder.registry.parameter_registered(parent, parameter)
        ),
        hooks.register_module_buffer_registration_hook(lambda *_: recorder.registry.changed()),
    ]
    unwrap = wrap(nn.Module, "__call__", make)

    def detach() -> None:
        unwrap()
        for handle in handles:
            handle.remove()

    return detach


def _argument_names(module: nn.Module) -> list[str]:
    try:
        parameters = inspect.signature(module.forward).parameters.values()
    except (TypeError, ValueError):  # a forward without a Python signature, such as a scripted one
        return []
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
