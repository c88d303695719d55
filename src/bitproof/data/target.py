"""A loader named on the command line: FILE.py:NAME or MODULE:NAME."""

import importlib
import importlib.util
import re
import sys
import traceback
import warnings
from collections.abc import Iterator, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from torch.utils.data import DataLoader

from bitproof.data.errors import TargetError
from bitproof.data.loader import Loader
from bitproof.data.torch_loader import OrderChangedWarning, order_change, settings_of
from bitproof.errors import BitproofError


@dataclass(frozen=True)
class Target:
    """What was named.

    Args:
        loader: as it is, or made for what was named.
        advice: how to train with this loader, a line each, where something else was named; else empty.

    """

    loader: Loader
    advice: tuple[str, ...] = ()


def load_target(target: str, *, batch_size: int, seed: int) -> Target:
    """Import a loader, with what to do to train with it.

    NAME is a `Loader`, a plain DataLoader (taken over by `Loader.from_torch`), a map-style data set (shuffled), or a
    function without arguments that returns one of these. The module runs, as with any import.

    Args:
        target: "train.py:make_loader" or "package.module:dataset".
        batch_size: for a data set.
        seed: for a data set or a plain DataLoader.

    Raises:
        TargetError: there is no such file, module or name; its code failed; or it is none of the above.
        NotCarriedError: it is a loader of a stream, or one that does not read batches of indices.

    """
    where, separator, name = target.rpartition(":")
    if not separator:
        raise TargetError(f"target {target!r}: expected FILE.py:NAME or MODULE:NAME, as in train.py:make_loader.")
    with failures_named(target, "importing it"):
        module = _import(where)
    if not hasattr(module, name):
        known = ", ".join(key for key in vars(module) if not key.startswith("_"))
        raise TargetError(f"target {target!r}: {where} has no {name!r}. It has: {known}.")
    found: Any = getattr(module, name)
    if callable(found) and not hasattr(found, "__getitem__") and not isinstance(found, Loader | DataLoader):
        with failures_named(target, f"calling {name}() without arguments"):
            found = found()
    if isinstance(found, Loader):
        return Target(found)
    if isinstance(found, DataLoader):
        return _taken_over(found, seed)
    is_data_set = isinstance(found, Sized) and hasattr(found, "__getitem__") and not isinstance(found, type)
    if not is_data_set:
        raise TargetError(
            f"target {target!r} is {found!r:.60}, of type {type(found).__name__}: expected a bitproof Loader, a DataLoader, a "
            "map-style data set (len(dataset) and dataset[index]), or a function that returns one. For a stream see "
            "bitproof.data.measure_resume()."
        )
    dataset: Any = found
    size = min(batch_size, max(1, len(dataset)))
    advice = (
        f"{type(dataset).__name__} is a data set. What was read is",
        f"    loader = bitproof.data.Loader(dataset, {size}, shuffle=True, seed={seed})",
        "Train with such a loader: what samples draw is then the same under any workers, ranks and resume.",
    )
    return Target(Loader(dataset, size, shuffle=True, seed=seed), advice)


@contextmanager
def failures_named(target: str, doing: str) -> Iterator[None]:
    """Turn what the user's code raises in the block into one message: what, where, and what to do.

    Raises:
        TargetError: the block raised anything that is not an error of bitproof's own.

    """
    try:
        yield
    except BitproofError:
        raise
    except (Exception, SystemExit) as error:
        kind = type(error).__name__
        lines = str(error).strip().splitlines() or [""]  # torch's text of a worker's error ends with the error itself
        raise TargetError(
            f"target {target!r}: {doing} failed with {kind}: {lines[-1].removeprefix(f'{kind}: ')}{_place(error)}. Make it "
            "work in a plain Python process first; what only training needs belongs under if __name__ == '__main__'."
        ) from error


def _place(error: BaseException) -> str:
    """Return " at FILE:LINE" of the user's code that raised an error, "" where none is known."""
    in_worker = re.findall(r'File "(.+)", line (\d+)', str(error))  # torch sends a worker's traceback as text
    own = (str(Path(__file__).parents[1]), "<frozen")
    frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    for name, line in reversed(in_worker or frames):
        if not name.startswith(own):
            return f" at {name}:{line}"
    return ""


def _taken_over(plain: DataLoader[Any], seed: int) -> Target:
    with warnings.catch_warnings(action="ignore", category=OrderChangedWarning):
        loader = Loader.from_torch(plain, seed=seed)  # said below
    holds = "its position, and not what samples draw," if hasattr(plain, "state_dict") else "no position"
    change = order_change(settings_of(plain), plain, seed) or "the order of samples stays as it is."
    advice = [
        f"A {type(plain).__name__} holds {holds} over a resume. What was read is",
        f"    loader = bitproof.data.Loader.from_torch(loader, seed={seed})",
        f"Train with that: {change}",
        "What samples draw (augmentation) is set from (seed, epoch, index), and changes once as well.",
    ]
    if not plain.num_workers and loader.batch_sampler is None:
        advice.append("To keep the order as it was, without workers: bitproof.data.carry(loader).")
    return Target(loader, tuple(advice))


def _import(where: str) -> ModuleType:
    if not where.endswith(".py"):
        try:
            return importlib.import_module(where)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{where}.".startswith(f"{error.name}."):
                raise  # something that the module imports
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
