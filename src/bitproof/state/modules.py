"""What a module must carry, by name, and how it is put back in place.

More than its ``state_dict``: buffers that are not persistent, train or eval mode of every submodule, which parameters
are frozen, gradients of an open accumulation window, extra state, and the states of torchmetrics' metrics.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from bitproof.fingerprint import digest_tensor
from bitproof.state.errors import StateMismatchError, UnsupportedStateError
from bitproof.state.restore import differences, overwrite, restore_into
from bitproof.state.tree import snapshot

_WRAPPERS: Mapping[str, str] = {
    "OptimizedModule": "_orig_mod",
    "DistributedDataParallel": "module",
    "DataParallel": "module",
}
_SHOWN = 5

Tensors = dict[str, torch.Tensor]


def named_submodules(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield every submodule by each of its names, without what ``torch.compile`` and DDP put before names."""
    by_path = dict(module.named_modules(remove_duplicate=False))
    for path, submodule in by_path.items():
        parts = path.split(".") if path else []
        kept = [
            part for i, part in enumerate(parts) if _WRAPPERS.get(type(by_path[".".join(parts[:i])]).__name__) != part
        ]
        yield ".".join(kept), submodule


def named_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return every parameter by each of its names; a tied one has several."""
    found = {}
    for path, submodule in named_submodules(module):
        for name, parameter in submodule.named_parameters(recurse=False, remove_duplicate=False):
            found[f"{path}.{name}" if path else name] = parameter
    return found


def capture_module(module: nn.Module, *, gradients: bool = True) -> dict[str, Any]:
    """Collect a module's state as a tree; its tensors are the live ones.

    Args:
        module: any module; wrappers of ``torch.compile`` and DDP leave no trace in the names.
        gradients: also take each parameter's ``.grad``, where None stays None.

    Raises:
        UnsupportedStateError: a lazy parameter has no value yet.
    """
    parameters = named_parameters(module)
    lazy = [name for name, parameter in parameters.items() if isinstance(parameter, UninitializedParameter)]
    if lazy:
        msg = f"parameters {_some(lazy)} of {type(module).__name__} have no value yet; run one batch through it before the first save"
        raise UnsupportedStateError(msg)
    tied = _ties(parameters)
    own = {name: parameter for name, parameter in parameters.items() if name not in tied}
    tree: dict[str, Any] = {
        "class": type(module).__name__,
        "parameters": {name: parameter.detach() for name, parameter in own.items()},
        "tied": tied,
        "frozen": sorted(name for name, parameter in own.items() if not parameter.requires_grad),
        "buffers": {name: None if b is None else b.detach() for name, (_, _, b) in _named_buffers(module).items()},
        "training": {path: submodule.training for path, submodule in named_submodules(module)},
        "extra": {path: submodule.get_extra_state() for path, submodule in _with_extra_state(module)},
        "metrics": {path: _capture_metric(submodule) for path, submodule in _metrics(module)},
        "attributes": _attributes(module),
    }
    if gradients:
        tree["gradients"] = {
            name: None if parameter.grad is None else parameter.grad.detach() for name, parameter in own.items()
        }
    return tree


def restore_module(module: nn.Module, saved: Mapping[str, Any]) -> list[str]:
    """Put a module's state back into the same parameters and buffers; nothing changes if anything does not fit.

    Args:
        module: the live module.
        saved: what :func:`capture_module` gave.

    Returns:
        Notes on plain attributes that differ; these are not part of the state, and stay as they are.

    Raises:
        StateMismatchError: names, shapes, dtypes or ties differ; the message has both sides.
    """
    parameters, buffers = named_parameters(module), _named_buffers(module)
    submodules = dict(named_submodules(module))
    tied = _ties(parameters)
    own = {name: parameter for name, parameter in parameters.items() if name not in tied}
    problems = [
        *_tie_problems(saved["tied"], tied),
        *_fit_problems("parameter", saved["parameters"] | dict.fromkeys(saved["tied"]), own | dict.fromkeys(tied)),
        *_fit_problems("buffer", saved["buffers"], {name: buffer for name, (_, _, buffer) in buffers.items()}),
        *_name_problems("submodule", saved["training"], submodules),
        *_name_problems("extra state of", saved["extra"], dict(_with_extra_state(module))),
        *_name_problems("metric", saved["metrics"], dict(_metrics(module))),
    ]
    if problems:
        shown = "\n  ".join(problems[:_SHOWN])
        more = f"\n  and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        msg = f"the saved {saved['class']} does not fit the live {type(module).__name__}:\n  {shown}{more}\nBuild the module as it was when it was saved."
        raise StateMismatchError(msg)
    frozen = set(saved["frozen"])
    for name, parameter in own.items():
        overwrite(parameter, saved["parameters"][name])
        parameter.requires_grad_(name not in frozen)
        if "gradients" in saved:
            restore_gradient(parameter, saved["gradients"][name])
    for name, (holder, key, buffer) in buffers.items():
        value = saved["buffers"][name]
        if buffer is not None and value is not None:
            overwrite(buffer, value)
        elif buffer is not value:
            setattr(holder, key, None if value is None else value.to(_device_of(module), copy=True))
    for path, submodule in named_submodules(module):  # a wrapper has the name of what it wraps
        submodule.training = saved["training"][path]
    for path, submodule in _with_extra_state(module):
        submodule.set_extra_state(snapshot(saved["extra"][path]))
    for path, submodule in _metrics(module):
        _restore_metric(submodule, saved["metrics"][path])
    return [
        f"{place.removeprefix('state')} is a plain attribute that differs and was left as it is ({values}); make it a buffer if training changes it"
        for place, _, values in (line.partition(": ") for line in differences(saved["attributes"], _attributes(module)))
    ]


def restore_gradient(parameter: torch.Tensor, saved: torch.Tensor | None) -> None:
    """Put a gradient back; None stays None."""
    live = parameter.grad
    if saved is None:
        parameter.grad = None
    elif live is not None and live.dtype is saved.dtype and live.shape == saved.shape:
        overwrite(live, saved)
    else:
        parameter.grad = saved.to(parameter.device, copy=True)


def _ties(parameters: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Map each further name of a parameter to its first one in alphabetical order."""
    first: dict[int, str] = {}
    for name in sorted(parameters):
        first.setdefault(id(parameters[name]), name)
    return {name: first[id(p)] for name, p in parameters.items() if first[id(p)] != name}


def _named_buffers(module: nn.Module) -> dict[str, tuple[nn.Module, str, torch.Tensor | None]]:
    """Return every buffer, persistent or not, and those that are None, with the module that holds it."""
    return {
        f"{path}.{name}" if path else name: (submodule, name, buffer)
        for path, submodule in named_submodules(module)
        for name, buffer in submodule._buffers.items()  # noqa: SLF001  # named_buffers() leaves out what is None
    }


def _with_extra_state(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for path, submodule in named_submodules(module):
        if type(submodule).get_extra_state is not nn.Module.get_extra_state:
            yield path, submodule


def _metrics(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield torchmetrics' metrics: modules whose states are neither parameters nor buffers."""
    for path, submodule in named_submodules(module):
        if isinstance(getattr(type(submodule), "metric_state", None), property):
            yield path, submodule


def _capture_metric(metric: Any) -> dict[str, Any]:
    # The count decides how a forward call averages its states.
    return {"states": dict(metric.metric_state), "updates": metric._update_count}  # noqa: SLF001


def _restore_metric(metric: Any, saved: Mapping[str, Any]) -> None:
    for name, value in saved["states"].items():
        setattr(metric, name, restore_into(getattr(metric, name), value, metric.device))
    metric._update_count = saved["updates"]  # noqa: SLF001
    metric._computed = None  # noqa: SLF001  # a result kept from other states


def _attributes(module: nn.Module) -> dict[str, Any]:
    """Return plain numbers and unregistered tensors that the user's own modules hold."""
    found: dict[str, Any] = {}
    for path, submodule in named_submodules(module):
        if type(submodule).__module__.partition(".")[0] in {"torch", "torchmetrics"}:
            continue
        for name, value in vars(submodule).items():
            if name.startswith("_") or name == "training":
                continue
            key = f"{path}.{name}" if path else name
            if type(value) in {bool, int, float}:
                found[key] = value
            elif type(value) is torch.Tensor and value.layout is torch.strided and value.device.type != "meta":
                found[key] = f"{describe_layout(value)}, digest {digest_tensor(value):016x}"
    return found


def describe_layout(tensor: torch.Tensor) -> str:
    """Say a tensor's dtype and shape."""
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {list(tensor.shape)}"


def _tie_problems(saved: Mapping[str, str], live: Mapping[str, str]) -> Iterator[str]:
    for name in sorted(saved.keys() | live.keys()):
        if saved.get(name) != live.get(name):
            was = f"tied to {saved[name]}" if name in saved else "a parameter of its own"
            now = f"tied to {live[name]}" if name in live else "a parameter of its own"
            yield f"{name}: saved {was}, live {now}"


def _name_problems(what: str, saved: Mapping[str, Any], live: Mapping[str, Any]) -> Iterator[str]:
    missing, unexpected = sorted(live.keys() - saved.keys()), sorted(saved.keys() - live.keys())
    if missing:
        yield f"{what} {_some(missing)}: live, not saved"
    if unexpected:
        yield f"{what} {_some(unexpected)}: saved, not live"


def _fit_problems(what: str, saved: Mapping[str, Any], live: Mapping[str, Any]) -> Iterator[str]:
    yield from _name_problems(what, saved, live)
    for name in saved:
        old, new = saved[name], live.get(name)
        if old is not None and new is not None and (old.dtype is not new.dtype or old.shape != new.shape):
            yield f"{what} {name}: saved {describe_layout(old)}, live {describe_layout(new)}"


def _some(names: list[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:_SHOWN])
    return shown + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def _device_of(module: nn.Module) -> torch.device:
    for tensor in (*module.parameters(), *module.buffers()):
        return tensor.device
    return torch.device("cpu")
