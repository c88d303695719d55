"""A loader named on the command line: FILE.py:NAME or MODULE:NAME."""

import importlib
import importlib.util
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from torch.utils.data import DataLoader

from bitproof.data.errors import TargetError
from bitproof.data.loader import Loader
from bitproof.data.torch_loader import OrderChangedWarning, order_change, settings_of


@dataclass(frozen=True)
class Target:
    """What was named.

    Args:
        loader: as it is, or made for what was named.
        advice: how to train with this loader, where something else was named; else None.

    """

    loader: Loader
    advice: str | None = None


def load_target(target: str, *, batch_size: int, seed: int) -> Target:
    """Import a loader, with what to do to train with it.

    NAME is a `Loader`, a plain DataLoader (taken over by `Loader.from_torch`), a map-style data set (shuffled), or a
    function without arguments that returns one of these. The module runs, as with any import.

    Args:
        target: "train.py:make_loader" or "package.module:dataset".
        batch_size: for a data set.
        seed: for a data set or a plain DataLoader.

    Raises:
        TargetError: there is no such file, module or name.
        NotCarriedError: it is none of the above.

    """
    where, separator, name = target.rpartition(":")
    if not separator:
        raise TargetError(f"target {target!r}: expected FILE.py:NAME or MODULE:NAME, as in train.py:make_loader.")
    module = _import(where)
    if not hasattr(module, name):
        known = ", ".join(key for key in vars(module) if not key.startswith("_"))
        raise TargetError(f"target {target!r}: {where} has no {name!r}. It has: {known}.")
    found: Any = getattr(module, name)
    if callable(found) and not hasattr(found, "__getitem__") and not isinstance(found, Loader | DataLoader):
        found = found()
    if isinstance(found, Loader):
        return Target(found)
    if isinstance(found, DataLoader):
        return _taken_over(found, seed)
    size = min(batch_size, max(1, len(found)))
    advice = (
        f"{type(found).__name__} is a data set: what was read is bitproof.data.Loader(dataset, {size}, shuffle=True, "
        f"seed={seed}). Train with such a loader: any other draws its samples' randomness elsewhere."
    )
    return Target(Loader(found, size, shuffle=True, seed=seed), advice)


def _taken_over(plain: DataLoader[Any], seed: int) -> Target:
    with warnings.catch_warnings(action="ignore", category=OrderChangedWarning):
        loader = Loader.from_torch(plain, seed=seed)  # said below
    change = order_change(settings_of(plain), plain, seed) or "the order of samples stays as it is."
    kept = (
        ""
        if plain.num_workers or loader.batch_sampler is not None
        else " To keep the order as it is, without workers: bitproof.data.carry(loader)."
    )
    holds = (
        "its position, but no augmentation," if hasattr(plain, "state_dict") else "neither position nor augmentation"
    )
    advice = (
        f"{type(plain).__name__} holds {holds} over a resume: what was read is bitproof.data.Loader.from_torch(loader, seed={seed}). Train with that: {change} What samples draw (augmentation) "
        f"is set from (seed, epoch, index), which changes it once as well.{kept}"
    )
    return Target(loader, advice)


def _import(where: str) -> ModuleType:
    if not where.endswith(".py"):
        try:
            return importlib.import_module(where)
        except ModuleNotFoundError as error:
            raise TargetError(f"target: no module {where!r} ({error}). Give a file as FILE.py:NAME.") from error
    path = Path(where)
    if not path.is_file():
        raise TargetError(f"target: no file {where!r} in {Path.cwd()}.")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Registered and on the path, so that workers that are not forked find its classes.
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.parent.resolve()))
    spec.loader.exec_module(module)
    return module
