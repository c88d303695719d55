"""Make what PyTorch computes repeat: set what this version offers, check that it took effect, put it back."""

import os
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bitproof.errors import UsageError

GROUPS = ("algorithms", "onednn", "cudnn", "cublas")
"""What :func:`deterministic` sets besides seeds, in parts that can be set alone."""
_HASH_SEED = "PYTHONHASHSEED"
_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
_WORKSPACES = (":4096:8", ":16:8")
"""The values with which cuBLAS repeats itself, by NVIDIA's documentation of cuBLAS (results reproducibility)."""


@dataclass(frozen=True)
class Choice:
    """What is to be set.

    Args:
        seed: for Python's, NumPy's and torch's generators; None to leave them alone.
        groups: which of :data:`GROUPS`.
        fill_memory: fill memory that nothing has written yet.
        warn_only: warn of an operation that has no deterministic implementation, instead of an error.
    """

    seed: int | None = None
    groups: tuple[str, ...] = GROUPS
    fill_memory: bool = False
    warn_only: bool = False

    def variables(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the variables that a child process needs from its start; values that serve as well are kept."""
        found = {}
        if not environment.get(_HASH_SEED, "").isdecimal():
            found[_HASH_SEED] = "0"
        if "cublas" in self.groups and environment.get(_WORKSPACE) not in _WORKSPACES:
            found[_WORKSPACE] = _WORKSPACES[0]
        return found


@dataclass(frozen=True)
class Setting:
    """One thing that was set, as it was read back.

    Args:
        name: what a script would write.
        before: its value before, None where it cannot be read.
        after: its value afterwards.
        took_effect: whether it is now as determinism needs it.
        note: why not, or what else to know.
    """

    name: str
    before: Any
    after: Any
    took_effect: bool
    note: str = ""


@dataclass
class Deterministic:
    """What :func:`deterministic` did. As a context manager, once, it puts the settings back at its end.

    Args:
        settings: each thing that was set, in order.
    """

    settings: tuple[Setting, ...]
    _undo: list[Callable[[], None]] = field(default_factory=list, repr=False, compare=False)
    _used: bool = field(default=False, init=False, repr=False, compare=False)

    def __str__(self) -> str:
        """Write a line a setting."""
        width = max((len(s.name) for s in self.settings), default=0)
        lines = [f"{sum(s.took_effect for s in self.settings)} of {len(self.settings)} settings are in effect"]
        for s in self.settings:
            values = f"{s.before!r} → {s.after!r}" if s.before != s.after else f"{s.after!r}, as before"
            effect = "" if s.took_effect else "NOT in effect"
            note = "; ".join(text for text in (effect, s.note) if text)
            lines.append(f"  {s.name.ljust(width)}  {values}" + (f"  ({note})" if note else ""))
        return "\n".join(lines)

    def __enter__(self) -> Self:
        """Begin the block at whose end the settings are put back.

        Raises:
            UsageError: there was such a block, or :meth:`undo`, so nothing would be in effect.
        """
        if self._used:
            raise UsageError(
                "what deterministic() returned serves one `with` block, and was used already: its settings are put back. "
                "Call deterministic() again for each block."
            )
        self._used = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.undo()

    def undo(self) -> None:
        """Put every setting back as it was, once; generators go on from where they are."""
        self._used = True
        while self._undo:
            self._undo.pop()()


def deterministic(seed: int | None = 0, *, fill_memory: bool = False, warn_only: bool = False) -> Deterministic:
    """Make what PyTorch computes repeat on this machine, and say what took effect.

    Call it before the model is built and before CUDA starts. Used in ``with``, the settings are put back at the end of
    the block, also after an exception. Seeding is no setting: what was drawn stays drawn, and the generators go on.

    The precision of float32 products (TF32) is left as it is: it changes results, and they repeat all the same.
    PYTHONHASHSEED cannot be set from inside a process; whether it is set is reported.

    Args:
        seed: for Python's, NumPy's and torch's generators, on all devices, 0 ≤ seed < 2**64; NumPy gets it modulo
            2**32. None leaves the generators alone.
        fill_memory: fill new memory that nothing has written yet, so that reading it repeats. It costs time at each
            allocation, and hides a bug that shows otherwise.
        warn_only: warn of an operation that has no deterministic implementation, instead of raising RuntimeError.

    Returns:
        What was done; ``print`` it.

    Raises:
        UsageError: the seed is none, or an option is neither True nor False; nothing was changed.

    Example::

        bitproof.deterministic(seed=0)

        with bitproof.deterministic(seed=None) as made:
            print(made)
    """
    _check_seed(seed, f"deterministic(seed={seed!r})")
    for name, value in {"fill_memory": fill_memory, "warn_only": warn_only}.items():
        if not isinstance(value, bool):
            raise UsageError(f"deterministic({name}={value!r}): expected True or False.")
    return apply(Choice(seed, fill_memory=fill_memory, warn_only=warn_only))


def chosen(*, deterministic: bool, seed: int | None) -> Choice | None:
    """Read the options of a command: ``--deterministic`` and ``--seed``.

    Raises:
        UsageError: the seed is none, or would not be used.
    """
    if not deterministic:
        if seed is not None:
            raise UsageError(f"--seed {seed}: it is used with --deterministic only. Add that, or leave the seed out.")
        return None
    _check_seed(seed, f"--seed {seed}")
    return Choice(seed)


def _check_seed(seed: object, where: str) -> None:
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**64):
        raise UsageError(f"{where}: expected a whole number, 0 ≤ seed < 2**64.")


def apply(choice: Choice) -> Deterministic:
    """Set what was chosen, in the order in which it has to be: variables, flags, seeds."""
    settings: list[Setting] = []
    undo: list[Callable[[], None]] = []
    if "cublas" in choice.groups:
        settings.append(_set_workspace(undo))
    settings += [flag.set(undo) for flag in _flags(choice)]
    settings.append(_hash_seed())
    if choice.seed is not None:
        settings += _seed(choice.seed)
    return Deterministic(tuple(settings), undo)


@dataclass(frozen=True)
class _Flag:
    """A setting of torch: how to read it and to write it."""

    name: str
    wanted: Any
    read: Callable[[], Any]
    write: Callable[[Any], None]

    def set(self, undo: list[Callable[[], None]]) -> Setting:
        before, note = self.read(), ""
        try:
            self.write(self.wanted)
        except RuntimeError as error:  # torch.backends.disable_global_flags() freezes some of them
            note = str(error)
        else:
            undo.append(lambda: self.write(before))
        after = self.read()
        return Setting(self.name, before, after, after == self.wanted, note)


def _flags(choice: Choice) -> list[_Flag]:
    import torch  # noqa: PLC0415  # the launcher must not import it
    import torch._inductor.config as inductor  # noqa: PLC0415  # torch.use_deterministic_algorithms imports it too

    def of(owner: Any, name: str, attribute: str, wanted: Any) -> _Flag:
        return _Flag(
            f"{name}.{attribute}",
            wanted,
            lambda: getattr(owner, attribute),
            lambda value: setattr(owner, attribute, value),
        )

    def algorithms() -> str:
        return ("off", "warn", "error")[torch.get_deterministic_debug_mode()]

    def set_algorithms(mode: str) -> None:
        torch.use_deterministic_algorithms(mode != "off", warn_only=mode == "warn")

    found = []
    if "algorithms" in choice.groups:
        # Inductor's comes first, so that it is put back last: the one after it changes it too.
        found += [
            of(inductor, "torch._inductor.config", "deterministic", wanted=True),
            _Flag(
                "torch.use_deterministic_algorithms",
                "warn" if choice.warn_only else "error",
                algorithms,
                set_algorithms,
            ),
            of(
                torch.utils.deterministic,
                "torch.utils.deterministic",
                "fill_uninitialized_memory",
                wanted=choice.fill_memory,
            ),
        ]
    if "onednn" in choice.groups:
        found.append(of(torch.backends.mkldnn, "torch.backends.mkldnn", "deterministic", wanted=True))
    if "cudnn" in choice.groups:
        found += [
            of(torch.backends.cudnn, "torch.backends.cudnn", "deterministic", wanted=True),
            of(torch.backends.cudnn, "torch.backends.cudnn", "benchmark", wanted=False),
        ]
    return found


def _set_workspace(undo: list[Callable[[], None]]) -> Setting:
    import torch  # noqa: PLC0415  # the launcher must not import it

    before = os.environ.get(_WORKSPACE)
    if before in _WORKSPACES:
        return Setting(_WORKSPACE, before, before, took_effect=True)
    os.environ[_WORKSPACE] = _WORKSPACES[0]
    undo.append(lambda: _set_variable(_WORKSPACE, before))
    late = torch.cuda.is_initialized()
    note = ""
    if late:
        note = "CUDA has started without it; call this first, or start with bitproof record --deterministic"
    elif not torch.backends.cuda.is_built():
        note = "this PyTorch has no CUDA, so nothing reads it"
    return Setting(_WORKSPACE, before, os.environ[_WORKSPACE], not late, note)


def _set_variable(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def _hash_seed() -> Setting:
    """Report whether the order of sets of strings repeats: what counts is what the process was started with."""
    now, started = os.environ.get(_HASH_SEED), _at_start(_HASH_SEED)
    fixed = started is not None and started.isdecimal()
    note = (
        ""
        if fixed
        else "it counts from a process's start: start with PYTHONHASHSEED=0, or bitproof record --deterministic"
    )
    return Setting(_HASH_SEED, now, now, fixed, note)


def _at_start(name: str) -> str | None:
    """Return a variable as this process was started with it; where the system does not tell, as it is now."""
    try:
        listed = Path("/proc/self/environ").read_bytes().split(b"\0")
    except OSError:
        return os.environ.get(name)
    beginning = f"{name}=".encode()
    return next((v[len(beginning) :].decode() for v in listed if v.startswith(beginning)), None)


def _seed(seed: int) -> list[Setting]:
    import numpy as np  # noqa: PLC0415  # the launcher need not wait for it
    import torch  # noqa: PLC0415  # the launcher must not import it

    before = torch.initial_seed()
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002  # the global one is what scripts draw from
    torch.manual_seed(seed)
    fresh, state = np.random.RandomState(seed % 2**32).get_state(legacy=False), np.random.get_state(legacy=False)  # noqa: NPY002
    assert isinstance(fresh, dict)
    assert isinstance(state, dict)
    same = fresh["state"]["pos"] == state["state"]["pos"] and bool(
        (fresh["state"]["key"] == state["state"]["key"]).all()
    )
    return [
        Setting("random.seed", None, seed, random.getstate() == random.Random(seed).getstate()),
        Setting("numpy.random.seed", None, seed % 2**32, same),
        Setting("torch.manual_seed", before, torch.initial_seed(), torch.initial_seed() == seed),
    ]
