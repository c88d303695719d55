"""Calls worth noting: seeding, restoring generators and state, threads, determinism, recomputation."""

import random
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
import torch.utils.checkpoint
from torch import nn
from torch.amp.grad_scaler import GradScaler

from bitproof.trail.probes.patching import Detach, all_of, when_imported, wrap
from bitproof.trail.recorder import Recorder


def attach(recorder: Recorder) -> Detach:
    """Watch the calls."""

    def noted(kind: Any, facts: Callable[..., dict[str, Any]]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                if torch.compiler.is_compiling():
                    return original(*args, **kwargs)
                recorder.event(kind, facts(*args, **kwargs))
                return original(*args, **kwargs)

            return call

        return make

    def seeded(generator: str) -> Any:
        return noted("seed", lambda *a, **k: {"generator": generator, "seed": _seed([*a, *k.values()])})

    def restored(generator: str) -> Any:
        return noted("rng-restored", lambda *_a, **_k: {"generator": generator})

    def loaded(on: str) -> Any:
        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def load_state_dict(target: Any, *args: Any, **kwargs: Any) -> Any:
                result = original(target, *args, **kwargs)
                facts: dict[str, Any] = {"on": on, "class": type(target).__name__}
                for name in ("missing_keys", "unexpected_keys"):
                    keys = getattr(result, name, None)
                    if keys:
                        facts[name] = list(keys)[:5]
                        facts[f"{name}_count"] = len(keys)
                recorder.event("load-state-dict", facts)
                return result

            return load_state_dict

        return make

    def watch_numpy(module: ModuleType) -> Detach:
        undo = [wrap(module, "seed", seeded("numpy")), wrap(module, "set_state", restored("numpy"))]
        return all_of(undo)

    undo = [
        wrap(torch, "manual_seed", seeded("torch")),
        wrap(torch.random, "manual_seed", seeded("torch")),
        wrap(random, "seed", seeded("python")),
        wrap(torch, "set_rng_state", restored("torch")),
        wrap(torch.random, "set_rng_state", restored("torch")),
        wrap(random, "setstate", restored("python")),
        when_imported("numpy.random", watch_numpy),
        wrap(torch, "set_num_threads", noted("threads-set", lambda n: {"threads": n})),
        wrap(
            torch,
            "use_deterministic_algorithms",
            noted("deterministic-set", lambda mode, **k: {"mode": bool(mode), **k}),
        ),
        wrap(
            torch.utils.checkpoint,
            "checkpoint",
            noted("recompute", lambda *_a, **k: {"preserve_rng_state": k.get("preserve_rng_state", True)}),
        ),
        wrap(nn.Module, "load_state_dict", loaded("module")),
        wrap(torch.optim.Optimizer, "load_state_dict", loaded("optimizer")),
        wrap(torch.optim.lr_scheduler.LRScheduler, "load_state_dict", loaded("scheduler")),
        wrap(GradScaler, "load_state_dict", loaded("scaler")),
    ]
    return all_of(undo)


def _seed(arguments: list[Any]) -> int | str | None:
    value = arguments[0] if arguments else None
    return value if value is None or isinstance(value, int) else str(value)
