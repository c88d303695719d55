"""What an optimizer must carry, by parameter name, and how it is put back exactly.

``Optimizer.load_state_dict`` matches parameters by position, casts what it loads to the parameter's dtype, and puts
new groups in the place of those that schedulers and wrappers hold. So it is called (custom optimizers do more in it),
and then the saved tensors are put back by name, with every bit, into the objects that were there before.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch.optim import Optimizer

from bitproof.state.errors import StateMismatchError
from bitproof.state.modules import describe_layout, restore_gradient
from bitproof.state.restore import differences, overwrite, restore_into
from bitproof.state.tree import snapshot

# Written by torch into any optimizer; they only say which checks and warnings are done.
_TORCHS_OWN = frozenset({"_need_device_dtype_check_for_fused", "_warned_capturable_if_run_uncaptured", "_opt_called"})
_SHOWN = 5


class Inner(NamedTuple):
    """An optimizer that another one holds."""

    path: str
    optimizer: Optimizer


class _Before(NamedTuple):
    """The objects that schedulers, wrappers and inner optimizers of a live optimizer hold."""

    holder: Any
    groups: list[Any]
    state: Any
    values: dict[Any, Any]

    @classmethod
    def of(cls, optimizer: Any) -> "_Before":
        state = getattr(optimizer, "state", None)
        return cls(
            optimizer.param_groups, list(optimizer.param_groups), state, dict(state) if isinstance(state, dict) else {}
        )

    def put_back(self, optimizer: Any) -> None:
        """Move the content of what ``load_state_dict`` made into the objects that were there before."""
        self.holder[:] = self.groups
        if optimizer.param_groups is not self.holder:
            optimizer.param_groups = self.holder
        if isinstance(self.state, dict) and optimizer.state is not self.state:
            content = dict(optimizer.state)
            self.state.clear()
            self.state.update(content)
            optimizer.state = self.state


def inner_optimizers(optimizer: Any) -> Iterator[Inner]:
    """Yield the optimizers that a wrapping one holds in its attributes, at any depth, each once."""
    seen = {id(optimizer)}
    waiting = [("", optimizer)]
    while waiting:
        path, holder = waiting.pop()
        for name, value in vars(holder).items():
            if name in {"state", "param_groups", "defaults"}:
                continue
            for place, candidate in _flat(value, f"{path}.{name}" if path else name):
                if isinstance(candidate, Optimizer) and id(candidate) not in seen:
                    seen.add(id(candidate))
                    yield Inner(place, candidate)
                    waiting.append((place, candidate))


def capture_optimizer(optimizer: Any, names: Mapping[int, str], *, gradients: bool = True) -> dict[str, Any]:
    """Collect an optimizer's state as a tree, with what its inner optimizers hold.

    Args:
        optimizer: a ``torch.optim.Optimizer``, or anything with ``param_groups``, ``state_dict`` and
            ``load_state_dict``; its own ``state_dict`` is used.
        names: each parameter's name by ``id``. Parameters of no registered module are called ``#group.position``; for
            those, value and gradient are collected too.
        gradients: also take gradients of such parameters.
    """
    tree = _capture_one(optimizer, names)
    loose: dict[str, dict[str, Any]] = {}
    for parameter, name in _parameters(optimizer, names):
        if id(parameter) not in names:
            loose[name] = {"value": parameter.detach()}
            if gradients:
                loose[name]["gradient"] = None if parameter.grad is None else parameter.grad.detach()
    tree["loose"] = loose
    tree["inner"] = {path: _capture_one(inner, names) for path, inner in inner_optimizers(optimizer)}
    return tree


def restore_optimizer(optimizer: Any, saved: Mapping[str, Any], names: Mapping[int, str]) -> list[str]:
    """Put an optimizer's state back, exactly, into its own groups and state.

    Args:
        optimizer: the live optimizer.
        saved: what :func:`capture_optimizer` gave.
        names: each live parameter's name by ``id``.

    Returns:
        The groups' places in the saved order, if they are declared in another order now; else nothing.

    Raises:
        StateMismatchError: parameters or groups differ by name, or a bit came back different.
    """
    inner = dict(inner_optimizers(optimizer))
    if inner.keys() != saved["inner"].keys():
        msg = f"the saved {saved['class']} held the optimizers {sorted(saved['inner'])}, the live one holds {sorted(inner)}"
        raise StateMismatchError(msg)
    parameters = {name: parameter for parameter, name in _parameters(optimizer, names)}
    _check_loose(saved, parameters)
    everyone = [(optimizer, saved), *((inner[path], tree) for path, tree in saved["inner"].items())]
    orders = [_group_order(one, tree, names) for one, tree in everyone]
    before = [_Before.of(one) for one, _ in everyone]  # all, since a wrapper's load_state_dict loads its inner one too
    for name, tree in saved["loose"].items():
        overwrite(parameters[name], tree["value"])
        if "gradient" in tree:
            restore_gradient(parameters[name], tree["gradient"])
    for (one, tree), order, objects in zip(everyone, orders, before, strict=True):
        _restore_one(one, tree, names, order, objects)
    for (one, tree), order in zip(everyone, orders, strict=True):
        _check(one, tree, names, order)
    if orders[0] is None or orders[0] == sorted(orders[0]):
        return []
    return [f"its groups were declared in another order: the live ones are the saved ones {orders[0]}"]


def _capture_one(optimizer: Any, names: Mapping[int, str]) -> dict[str, Any]:
    given = optimizer.state_dict()
    tree: dict[str, Any] = {
        "class": type(optimizer).__name__,
        "params": [[name for _, name in group] for group in _named_groups(optimizer, names)],
        "attributes": _numbers(optimizer),
    }
    name_of = _names_by_index(given, tree["params"])
    if name_of is None:
        # A form of its own: kept as it is, and only good for the same parameters in the same order.
        return tree | {"custom": given}
    state = given["state"]
    return tree | {
        "state": {name_of[index]: value for index, value in state.items() if index in name_of},
        "other": {key: value for key, value in state.items() if key not in name_of},
        "groups": [{k: v for k, v in group.items() if k != "params"} for group in given["param_groups"]],
        "rest": {key: value for key, value in given.items() if key not in {"state", "param_groups"}},
    }


def _names_by_index(given: Any, params: list[list[str]]) -> dict[Any, str] | None:
    """Return which saved index is which parameter, or None if the state dict has a form of its own."""
    if not isinstance(given, dict) or not isinstance(given.get("state"), dict):
        return None
    groups = given.get("param_groups")
    if not isinstance(groups, list) or [len(group.get("params", ())) for group in groups] != [len(g) for g in params]:
        return None
    return {
        index: name
        for group, names in zip(groups, params, strict=True)
        for index, name in zip(group["params"], names, strict=True)
    }


def _group_order(optimizer: Any, saved: Mapping[str, Any], names: Mapping[int, str]) -> list[int] | None:
    """Return for each live group the place of the saved one with the same parameters; None for a custom form."""
    live = [[name for _, name in group] for group in _named_groups(optimizer, names)]
    if "custom" in saved:
        if live != saved["params"]:
            _refuse_groups(saved, live)
        return None
    places = {frozenset(group): place for place, group in enumerate(saved["params"])}
    order = [places.get(frozenset(group), -1) for group in live]
    # Groups without parameters have the same key, so only the same order will do for them.
    if len(live) != len(saved["params"]) or -1 in order or (len(set(order)) != len(order) and live != saved["params"]):
        _refuse_groups(saved, live)
    return order if len(set(order)) == len(order) else list(range(len(live)))


def _refuse_groups(saved: Mapping[str, Any], live: list[list[str]]) -> None:
    old = {name: i for i, group in enumerate(saved["params"]) for name in group}
    new = {name: i for i, group in enumerate(live) for name in group}
    lines = [f"{name}: saved in group {old[name]}, live in group {new[name]}" for name in old if name in new]
    lines = [line for name, line in zip([n for n in old if n in new], lines, strict=True) if old[name] != new[name]]
    lines = [f"{name}: saved, not in the live optimizer" for name in old if name not in new] + lines
    lines = [f"{name}: in the live optimizer, not saved" for name in new if name not in old] + lines
    shown = "\n  ".join(
        lines[:_SHOWN] or [f"saved {len(saved['params'])} groups, live {len(live)}, or in another order"]
    )
    more = f"\n  and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
    msg = f"the saved groups of {saved['class']} do not fit the live ones:\n  {shown}{more}\nMake the optimizer over the same parameters, in the same groups."
    raise StateMismatchError(msg)


def _restore_one(
    optimizer: Any, saved: Mapping[str, Any], names: Mapping[int, str], order: list[int] | None, before: "_Before"
) -> None:
    if order is None:
        optimizer.load_state_dict(snapshot(saved["custom"]))
    else:
        optimizer.load_state_dict(_loadable(optimizer, saved, names, order))
        _put_state(optimizer, saved, names, before.values)
        new_groups = list(optimizer.param_groups)
        for place, old, new in zip(order, before.groups, new_groups, strict=True):
            content = {key: value for key, value in new.items() if key != "params"}
            for key, value in saved["groups"][place].items():
                if key != "param_names":  # names that the user gave, in the live order already
                    content[key] = restore_into(old.get(key), value)
            params = old["params"]
            old.clear()
            old.update(content, params=params)
        before.put_back(optimizer)
    for name, value in saved["attributes"].items():
        if type(vars(optimizer).get(name)) is type(value):
            setattr(optimizer, name, value)


def _loadable(optimizer: Any, saved: Mapping[str, Any], names: Mapping[int, str], order: list[int]) -> dict[str, Any]:
    """Return the state dict that the live optimizer would have given, in its own order."""
    live = [[name for _, name in group] for group in _named_groups(optimizer, names)]
    index_of: dict[str, int] = {}
    groups = []
    for place, group in zip(order, live, strict=True):
        for name in group:
            index_of.setdefault(name, len(index_of))
        groups.append({**saved["groups"][place], "params": [index_of[name] for name in group]})
    own = type(optimizer).load_state_dict is not Optimizer.load_state_dict
    state = {index_of[name]: value for name, value in saved["state"].items()} | saved["other"]
    given = {"state": state, "param_groups": groups, **saved["rest"]}
    if own:
        return snapshot(given)  # type: ignore[no-any-return]  # it may keep what it is given
    # torch's cast rebuilds any iterable from a generator expression: text would come out as the expression's repr.
    given["state"] = {key: _castable(value) for key, value in state.items()}
    return given


def _castable(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: item for key, item in value.items() if _is_castable(item)}
    return value


def _is_castable(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_is_castable(item) for item in value.values())
    if type(value) in {list, tuple}:
        return all(_is_castable(item) for item in value)
    return value is None or isinstance(value, (torch.Tensor, bool, int, float))


def _put_state(
    optimizer: Any, saved: Mapping[str, Any], names: Mapping[int, str], old_values: Mapping[Any, Any]
) -> None:
    """Put the saved tensors in the place of those that ``load_state_dict`` cast."""
    parameters = {name: parameter for parameter, name in _parameters(optimizer, names)}
    own = type(optimizer).load_state_dict is not Optimizer.load_state_dict
    for name, value in saved["state"].items():
        parameter = parameters[name]
        loaded = optimizer.state.get(parameter)
        if not isinstance(loaded, dict) or not isinstance(value, dict):
            continue
        if own and loaded.keys() != value.keys():
            continue  # it keeps its state in another form than it gives it; the check below judges
        old = old_values.get(parameter)
        kept = old if isinstance(old, dict) else {}
        exact = {key: restore_into(kept.get(key), item, _device(loaded.get(key))) for key, item in value.items()}
        kept.clear()
        kept.update(exact)
        optimizer.state[parameter] = kept
    for key, value in saved["other"].items():
        optimizer.state[key] = restore_into(old_values.get(key), value)


def _check(optimizer: Any, saved: Mapping[str, Any], names: Mapping[int, str], order: list[int] | None) -> None:
    """Compare what the optimizer now says of itself with what was saved, bit by bit."""
    live = _capture_one(optimizer, names)
    if order is None:
        wrong = list(differences(saved["custom"], live.get("custom")))
    elif "groups" not in live:
        wrong = ["its state_dict() has another form than when it was saved"]
    else:
        groups = [saved["groups"][place] for place in order]
        now = [
            {key: value for key, value in group.items() if key in old}
            for group, old in zip(live["groups"], groups, strict=True)
        ]
        for old, new in zip(groups, now, strict=True):
            new.update({key: value for key, value in old.items() if key == "param_names"})
        keys = ("state", "other", "rest")
        wrong = list(
            differences({k: saved[k] for k in keys} | {"groups": groups}, {k: live[k] for k in keys} | {"groups": now})
        )
    if wrong:
        shown = "\n  ".join(wrong[:_SHOWN])
        msg = f"{saved['class']} did not come back as it was saved:\n  {shown}\nIts load_state_dict changes what it loads; give the optimizer a load_state_dict that keeps dtypes and values."
        raise StateMismatchError(msg)


def _check_loose(saved: Mapping[str, Any], parameters: Mapping[str, torch.Tensor]) -> None:
    for name, tree in saved["loose"].items():
        value, live = tree["value"], parameters.get(name)
        if live is None or live.dtype is not value.dtype or live.shape != value.shape:
            now = "not there" if live is None else describe_layout(live)
            msg = f"parameter {name} (group.position) of {saved['class']} belongs to no registered module: saved {describe_layout(value)}, live {now}. Register the module that holds it."
            raise StateMismatchError(msg)


def _named_groups(optimizer: Any, names: Mapping[int, str]) -> list[list[tuple[torch.Tensor, str]]]:
    return [
        [(p, names.get(id(p), f"#{i}.{j}")) for j, p in enumerate(group["params"])]
        for i, group in enumerate(optimizer.param_groups)
    ]


def _parameters(optimizer: Any, names: Mapping[int, str]) -> Iterator[tuple[torch.Tensor, str]]:
    for group in _named_groups(optimizer, names):
        yield from group


def _numbers(optimizer: Any) -> dict[str, Any]:
    """Return plain attributes: counters and modes of wrapping optimizers, which their state dicts often lack."""
    return {
        name: value
        for name, value in vars(optimizer).items()
        if type(value) in {bool, int, float} and name not in _TORCHS_OWN
    }


def _flat(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield f"{path}[{key!r}]", item
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield f"{path}[{index}]", item
    else:
        yield path, value


def _device(loaded: Any) -> torch.device | None:
    return loaded.device if isinstance(loaded, torch.Tensor) else None
