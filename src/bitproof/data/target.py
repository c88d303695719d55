"""A loader named on the command line: FILE.py:NAME or MODULE:NAME."""

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from torch.utils.data import DataLoader

from bitproof.data.errors import TargetError
from bitproof.data.loader import Loader


def load_target(target: str, *, batch_size: int, seed: int) -> Loader:
    """Import a loader.

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
        return found
    if isinstance(found, DataLoader):
        return Loader.from_torch(found, seed=seed)
    return Loader(found, min(batch_size, max(1, len(found))), shuffle=True, seed=seed)


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
