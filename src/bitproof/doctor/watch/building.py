"""How a run begins: seeds, the model, the environment variable that must come before CUDA, and what is imported."""

import os
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as hooks
from torch.utils.data._utils import worker

from bitproof.doctor.watch.watch import Watch
from bitproof.trail.probes.patching import wrap
from bitproof.trail.site import caller_file, is_users, user_line

_PARALLEL = "DistributedDataParallel"
_VARIABLE = "CUBLAS_WORKSPACE_CONFIG"


def attach(watch: Watch) -> None:
    """Watch how the run begins."""
    start = _Start(watch)
    hooks.register_module_parameter_registration_hook(start.parameter_registered)
    hooks.register_module_module_registration_hook(start.module_registered)
    wrap(torch, "manual_seed", start.seeding)
    wrap(torch.random, "manual_seed", start.seeding)
    wrap(nn.RNNBase, "__init__", start.building_rnn)
    wrap(os, "putenv", start.setting_variable)
    watch.on_step.append(start.step_taken)


class _Start:
    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._seeded = False
        self._parallel = False
        self._built: str | None = None
        """Where the first parameter was made."""
        self._rnns: list[tuple[weakref.ref[nn.RNNBase], str | None]] = []

    def parameter_registered(self, _module: nn.Module, _name: str, parameter: Any) -> None:
        if self._built is None and not self._seeded and parameter is not None:
            self._built = user_line()

    def module_registered(self, parent: nn.Module, _name: str, _child: Any) -> None:
        self._parallel = self._parallel or type(parent).__name__ == _PARALLEL

    def seeding(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def manual_seed(*args: Any, **kwargs: Any) -> Any:
            # A loader's worker is seeded by torch, whether its parent was or not.
            if not torch.compiler.is_compiling() and caller_file() != worker.__file__:
                self._before_seed()
            return original(*args, **kwargs)

        return manual_seed

    def _before_seed(self) -> None:
        drawn = self._watch.generators()["torch"] != self._watch.initial["torch"]
        if not self._seeded and self._built is not None and self._watch.step == 0 and drawn:
            self._watch.say("built-unseeded", {"built": self._built})
        self._seeded = True

    def building_rnn(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __init__(module: nn.RNNBase, *args: Any, **kwargs: Any) -> None:  # noqa: N807  # stands in for it
            original(module, *args, **kwargs)
            self._rnns.append((weakref.ref(module), user_line()))

        return __init__

    def setting_variable(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def putenv(name: Any, value: Any) -> None:
            original(name, value)
            if os.fsdecode(name) == _VARIABLE:
                cuda = torch.cuda.is_initialized()
                self._watch.say("variable", {"name": _VARIABLE, "value": os.fsdecode(value), "cuda": cuda})

        return putenv

    def step_taken(self, step: int) -> None:
        """Say, after the first step, how it all began."""
        if step != 1:
            return
        self._watch.on_step.remove(self.step_taken)
        main = getattr(sys.modules.get("__main__"), "__file__", None)
        self._watch.say(
            "start",
            {
                "generators": self._watch.initial,
                "seeded": torch.initial_seed() != self._watch.initial_seed,
                "cuda": torch.cuda.is_initialized(),
                "built": self._built,
                "parallel": self._parallel,
                "main": str(Path(main).absolute()) if main else None,
                "files": _users_files(),
                "deterministic": torch.are_deterministic_algorithms_enabled(),
                "warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
                "cudnn_deterministic": torch.backends.cudnn.deterministic,
                "cudnn_benchmark": torch.backends.cudnn.benchmark,
            },
        )
        for reference, where in self._rnns:
            rnn = reference()
            weights = list(rnn.parameters()) if rnn is not None else []
            if rnn is not None and weights:
                facts = {"class": type(rnn).__name__, "layers": rnn.num_layers, "dropout": float(rnn.dropout)}
                facts |= {"device": weights[0].device.type, "training": rnn.training}
                self._watch.say("rnn", facts, where)


def _users_files() -> list[str]:
    """List the Python files of the user that are imported; torch has modules with a name that is no path."""
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    return sorted(file for file in files if file and file.startswith("/") and file.endswith(".py") and is_users(file))
