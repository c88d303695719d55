"""Checkpoints from outside a run: open them by path, compare two, export weights, go back to one."""

import contextlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from bitproof import environment, state
from bitproof.environment import Difference
from bitproof.errors import CheckpointCorruptError, CheckpointNotFoundError, UsageError
from bitproof.run.agreement import SAVE, held, shared
from bitproof.run.ranks import folders
from bitproof.store import Checkpoint, Commit, Store

FORMAT = 1
_AT_STEP = re.compile(r"(.+)@(\d+)")
_TORCH = {".pt", ".pth", ".bin", ".ckpt"}
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class TensorDifference(msgspec.Struct, frozen=True, kw_only=True):
    """How one tensor of two checkpoints differs."""

    name: str
    what: Literal["only in the first", "only in the second", "dtype", "shape", "values"]
    first: str | None
    """dtype and shape."""
    second: str | None
    differing: int = 0
    """Elements whose bytes differ."""
    of: int = 0
    ulp: int | None = None
    """The farthest apart, in representable numbers between them; of real floating dtypes, NaN left out."""
    apart: float | None = None
    """The greatest difference in value, NaN left out."""


class CheckpointDifference(msgspec.Struct, frozen=True, kw_only=True):
    """How two checkpoints differ, as ``bitproof diff --json`` prints it."""

    format: int = FORMAT
    verdict: Literal["identical", "different"]
    first: str
    second: str
    steps: tuple[int | None, int | None] = (None, None)
    """At which each was saved; None for a file of another kind."""
    tensors: int
    """Names in either."""
    identical: int
    differences: list[TensorDifference]
    environment: list[Difference] = []
    """How the environments differ in which two checkpoints of runs were saved; it decides nothing."""


def is_checkpoint(path: Path) -> bool:
    """Tell whether a path names a checkpoint: a run's folder, with ``@STEP`` or without, or a file of one."""
    found = _AT_STEP.fullmatch(str(path))
    folder = Path(found[1]) if found and not path.exists() else path
    return path.is_file() or (folder / "checkpoints").is_dir()


def compare(first: Path, second: Path, *, part: str | None = None) -> CheckpointDifference:
    """Compare two checkpoints tensor by tensor, byte by byte.

    A run's checkpoint that is compared with a file of another kind stands for the weights and buffers of one module.

    Args:
        first: a run's folder (its newest checkpoint), ``FOLDER@STEP``, one of its ``checkpoints/*.json``,
            a ``.safetensors`` file, or one of ``torch.save``, which is read without running code.
        second: likewise.
        part: the name under which the run has that module, by default ``model``; of two checkpoints of runs, compare only
            this module.

    Raises:
        UsageError: there is no checkpoint, or a run has no module of that name, or neither is of a run and one is named.
        CheckpointCorruptError: one is damaged, or would need code to be run.
    """
    opened = [_open(path) for path in (first, second)]
    of_runs = [isinstance(one, Checkpoint) for one in opened]
    if part is not None and not any(of_runs):
        raise UsageError(f"--part {part}: neither {first} nor {second} is a run's checkpoint. Leave out --part.")
    module = part or (None if all(of_runs) else "model")
    one, other = (_tensors(each, module) for each in opened)
    names = sorted(one.keys() | other.keys())
    found = [d for name in names for d in _differences(name, one.get(name), other.get(name))]
    return CheckpointDifference(
        verdict="different" if found else "identical",
        first=str(first),
        second=str(second),
        steps=(_step(opened[0]), _step(opened[1])),
        tensors=len(names),
        identical=len(names) - len(found),
        differences=found,
        environment=_environments_differ(*opened),
    )


def _step(found: Checkpoint | Mapping[str, torch.Tensor]) -> int | None:
    return found.step if isinstance(found, Checkpoint) else None


def _environments_differ(*opened: Checkpoint | Mapping[str, torch.Tensor]) -> list[Difference]:
    """Compare the environments that two checkpoints of runs were saved in, where both tell."""
    told = [one.facts.get("environment") for one in opened if isinstance(one, Checkpoint)]
    both = [found for found in told if isinstance(found, dict)]
    return environment.compare(*both) if len(both) == len(opened) else []


def export(store: Store, target: Path, *, step: int | None = None, part: str = "model") -> int:
    """Write a module's parameters and buffers as a safetensors file, under the names of its ``state_dict``.

    Args:
        store: the run's.
        target: the file.
        step: of the checkpoint; None for the newest good one.
        part: the name under which the module was registered.

    Returns:
        How many tensors.

    Raises:
        UsageError: the run has no module of that name.
        CheckpointNotFoundError: there is no such checkpoint.
    """
    weights = _weights(opened(store, step), part)
    save_file({name: tensor.clone().contiguous() for name, tensor in weights.items()}, target)
    return len(weights)


def go_back(run: Path, step: int) -> Commit:
    """Save an older checkpoint again as the newest one, so that the run goes on from it; nothing is removed.

    Args:
        run: its folder; with several ranks, each goes back.
        step: of the checkpoint.

    Returns:
        The new commit; of rank 0, if there are several.

    Raises:
        CheckpointNotFoundError: there is none of that step, or not every rank has it.
        StoreLockedError: the run is going on.
    """
    with contextlib.ExitStack() as closing:
        stores = [closing.enter_context(Store(folder, create=False)) for folder in folders(run)]
        for store in stores:
            store.lock.acquire()
        found = [stores[0].open(step)] if len(stores) == 1 else _of_all_ranks(run, stores, step)
        for checkpoint in found:
            checkpoint.verify()
        commits = [
            store.save(one.document, dict(one.tensors), step=step, facts={**one.facts, "restored": True})
            for store, one in zip(stores, found, strict=True)
        ]
        return commits[0]


def _of_all_ranks(run: Path, stores: list[Store], step: int) -> list[Checkpoint]:
    all_commits = [store.checkpoints() for store in stores]
    common = [
        commit.facts[SAVE]
        for commit in all_commits[0]
        if commit.step == step and commit.facts.get(SAVE) in shared([held(commits) for commits in all_commits])
    ]
    if not common:
        raise CheckpointNotFoundError(
            f"{run}: its {len(stores)} ranks have no checkpoint of step {step} in common. List rank 0's with: bitproof ls {run}"
        )
    newest = [[c.sequence for c in commits if c.facts.get(SAVE) == common[-1]][-1] for commits in all_commits]
    return [store.open(sequence=sequence) for store, sequence in zip(stores, newest, strict=True)]


def opened(store: Store, step: int | None) -> Checkpoint:
    """Open the checkpoint of a step, or the newest good one.

    Raises:
        CheckpointNotFoundError: there is none.
    """
    if step is not None:
        return store.open(step)
    checkpoint = store.latest()
    if checkpoint is None:
        raise CheckpointNotFoundError(f"{store.path} has no checkpoint yet.")
    return checkpoint


def _open(path: Path) -> Checkpoint | dict[str, torch.Tensor]:
    at_step = _AT_STEP.fullmatch(str(path))
    if path.is_dir():
        return opened(Store(path, create=False), None)
    if at_step and not path.exists():
        return Store(at_step[1], create=False).open(int(at_step[2]))
    if not path.exists():
        raise UsageError(f"there is nothing at {path}. Expected a run's folder, FOLDER@STEP, or a checkpoint file.")
    if path.suffix == ".json" and path.parent.name == "checkpoints" and path.stem.isdecimal():
        return Store(path.parent.parent, create=False).open(sequence=int(path.stem))
    if path.suffix == ".safetensors":
        try:
            return load_file(path)
        except SafetensorError as error:
            raise CheckpointCorruptError(f"{path} is no whole safetensors file: {error}") from error
    if path.suffix in _TORCH:
        try:
            return dict(_leaves(torch.load(path, map_location="cpu", weights_only=True), ""))
        except Exception as error:  # its readers raise many kinds, also for a pickle that would run code
            raise CheckpointCorruptError(
                f"{path} cannot be read as tensors and plain values alone: {str(error).splitlines()[0]} Loading runs no code; "
                "save the state_dict instead of the object."
            ) from error
    kinds = ", ".join([".safetensors", *sorted(_TORCH)])
    raise UsageError(f"{path}: expected a run's folder, FOLDER@STEP, or a file that ends in {kinds}.")


def _leaves(tree: Any, name: str) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(tree, torch.Tensor):
        yield name, tree.detach()
    elif isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from _leaves(value, f"{name}.{key}" if name else str(key))
    elif isinstance(tree, list | tuple):
        for index, value in enumerate(tree):
            yield from _leaves(value, f"{name}.{index}" if name else str(index))


def _tensors(found: Checkpoint | dict[str, torch.Tensor], module: str | None) -> Mapping[str, torch.Tensor]:
    if not isinstance(found, Checkpoint):
        return found
    return found.tensors if module is None else _weights(found, module)


def _weights(checkpoint: Checkpoint, part: str) -> dict[str, torch.Tensor]:
    tree = state.decode(checkpoint.document, checkpoint.tensors)
    parts = tree.get("parts", {}) if isinstance(tree, dict) else {}
    modules = [name for name, one in parts.items() if one["kind"] == "module"]
    if part not in modules:
        known = f"{', '.join(modules)}. Name one with --part" if modules else "none"
        raise UsageError(f"the checkpoint has no module {part!r}; it has: {known}.")
    saved = parts[part]["state"]
    weights = {**saved["parameters"], **{name: b for name, b in saved["buffers"].items() if b is not None}}
    return weights | {name: weights[of] for name, of in saved["tied"].items() if of in weights}


def _differences(name: str, one: torch.Tensor | None, other: torch.Tensor | None) -> Iterator[TensorDifference]:
    kinds = [None if t is None else f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for t in (one, other)]
    if one is None or other is None:
        what: Literal["only in the first", "only in the second"]
        what = "only in the second" if one is None else "only in the first"
        yield TensorDifference(name=name, what=what, first=kinds[0], second=kinds[1])
    elif one.dtype != other.dtype:
        yield TensorDifference(name=name, what="dtype", first=kinds[0], second=kinds[1])
    elif one.shape != other.shape:
        yield TensorDifference(name=name, what="shape", first=kinds[0], second=kinds[1])
    else:
        left, right = one.contiguous().reshape(-1), other.contiguous().reshape(-1)
        same = (left.view(torch.uint8) == right.view(torch.uint8)).reshape(left.numel(), -1).all(dim=1)
        differing = int((~same).sum())
        if differing:
            ulp, apart = _distance(left[~same], right[~same])
            yield TensorDifference(
                name=name,
                what="values",
                first=kinds[0],
                second=kinds[1],
                differing=differing,
                of=left.numel(),
                ulp=ulp,
                apart=apart,
            )


def _distance(left: torch.Tensor, right: torch.Tensor) -> tuple[int | None, float | None]:
    if left.is_complex():
        return None, None
    exact = left.is_floating_point() and left.dtype.itemsize in _INTEGERS
    known = ~(left.to(torch.float64).isnan() | right.to(torch.float64).isnan())
    left, right = left[known], right[known]
    if not left.numel():
        return None, None
    apart = (left.to(torch.float64) - right.to(torch.float64)).abs()
    finite = apart[apart.isfinite()]
    ulp = None
    if exact:
        # Numbers of one sign are ordered as their bits are, so a distance in ULP is one of integers; Python's, since
        # that of two float64 may have 64 bits.
        ordinals = [_ordinals(side) for side in (left, right)]
        ulp = max(abs(a - b) for a, b in zip(*ordinals, strict=True))
    return ulp, float(finite.max()) if finite.numel() else None


def _ordinals(values: torch.Tensor) -> list[int]:
    bits = 8 * values.dtype.itemsize
    whole = values.view(_INTEGERS[values.dtype.itemsize]).tolist()
    return [number if number >= 0 else -(number + (1 << (bits - 1))) for number in whole]
