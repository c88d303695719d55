"""Gradient scalers: their state before an update, and updates that they skip."""

from collections.abc import Callable
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler

from bitproof.trail.probes.patching import Detach, all_of, wrap
from bitproof.trail.recorder import Recorder


def attach(recorder: Recorder) -> Detach:
    """Watch ``GradScaler.step`` and ``GradScaler.update``."""

    def make_step(original: Callable[..., Any]) -> Callable[..., Any]:
        def step(scaler: GradScaler, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
            if not scaler.is_enabled():
                return original(scaler, optimizer, *args, **kwargs)
            recorder.scaler_steps(scaler.state_dict())
            before = recorder.updates_seen
            try:
                result = original(scaler, optimizer, *args, **kwargs)
                if recorder.updates_seen == before:
                    recorder.update_skipped(optimizer)
            finally:
                recorder.scaler_steps(None)
            return result

        return step

    def make_update(original: Callable[..., Any]) -> Callable[..., Any]:
        def update(scaler: GradScaler, *args: Any, **kwargs: Any) -> Any:
            if not scaler.is_enabled():
                return original(scaler, *args, **kwargs)
            before = scaler.get_scale()
            result = original(scaler, *args, **kwargs)
            if scaler.get_scale() < before and not args and not kwargs:
                # A fused optimizer is called all the same and skips the update inside.
                recorder.mark_skipped()
                recorder.event("scaler-skipped", {"scale": scaler.get_scale()})
            return result

        return update

    undo = [wrap(GradScaler, "step", make_step), wrap(GradScaler, "update", make_update)]
    return all_of(undo)
