"""Wrap a function in place, where PyTorch offers no hook, and put it back."""

import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from types import CodeType, FunctionType, ModuleType
from typing import Any

from bitproof.errors import ProbeError

Detach = Callable[[], None]


def wrap(owner: Any, name: str, make: Callable[[Any], Callable[..., Any]]) -> Detach:
    """Replace ``owner.name`` with ``make(original)``.

    Args:
        owner: a module or class.
        name: an attribute that must exist.
        make: given the original, returns its replacement.

    Returns:
        The function that puts the original back.

    Raises:
        ProbeError: there is no such attribute in this version.
    """
    missing: Any = object()
    own = vars(owner).get(name, missing)
    original: Any = getattr(owner, name, missing)
    if original is missing:
        where = getattr(owner, "__qualname__", getattr(owner, "__name__", repr(owner)))
        msg = (
            f"bitproof watches {where}.{name}, and this version does not have it. "
            "Please report it with the output of `pip list`; use a supported PyTorch (2.13 or 2.14) meanwhile."
        )
        raise ProbeError(msg)
    replacement: Callable[..., Any] = functools.wraps(original)(make(original))
    setattr(owner, name, replacement)

    def detach() -> None:
        # Somebody who wrapped it after us keeps their wrapper, which calls ours, which then only passes on.
        if getattr(owner, name, None) is replacement:
            if own is missing:
                delattr(owner, name)
            else:
                setattr(owner, name, own)

    return detach


def hide_from_compiler(package: str) -> None:
    """Let ``torch.compile`` compile no function of a package.

    After a graph break it goes on to compile whatever is called, a probe as soon as the user's own function. What a
    graph calls is not touched by this: there a probe steps aside by itself.

    Raises:
        ProbeError: there is no way to say so in this version.
    """
    # What torch._dynamo's own skip_code() does, without importing torch._dynamo, which takes seconds.
    from torch._C._dynamo import eval_frame  # noqa: PLC0415  # this module is imported without torch

    frames: Any = eval_frame
    try:
        leave_alone = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.DEFAULT)  # noqa: SLF001
        apply = frames.set_code_exec_strategy
    except AttributeError as error:
        msg = f"bitproof hides itself from torch.compile, and this version has no way to do so: {error}"
        raise ProbeError(msg) from error
    for name, module in list(sys.modules.items()):
        if name.startswith(f"{package}."):
            for code in _codes(module, name):
                apply(code, leave_alone)


def _codes(owner: Any, module: str) -> Iterator[CodeType]:
    """Yield the code of every function in a module or class, and of those inside them."""
    for value in list(vars(owner).values()):
        if isinstance(value, type) and value.__module__ == module:
            yield from _codes(value, module)
        elif isinstance(value, property):
            yield from (code for f in (value.fget, value.fset) if f is not None for code in _nested(f.__code__))
        else:
            function = getattr(value, "__func__", value)
            if isinstance(function, FunctionType) and function.__module__ == module:
                yield from _nested(function.__code__)


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


def all_of(undo: Sequence[Detach]) -> Detach:
    """Put several together, undone in reverse."""

    def detach() -> None:
        for each in reversed(undo):
            each()

    return detach


def when_imported(name: str, then: Callable[[ModuleType], Detach | None]) -> Detach:
    """Call ``then(module)`` now if the module is imported, else right after it is.

    Returns:
        The function that undoes it, whichever came.
    """
    undo: list[Detach] = []

    def call(module: ModuleType) -> None:
        detach = then(module)
        if detach is not None:
            undo.append(detach)

    if name in sys.modules:
        call(sys.modules[name])
    else:
        finder = _Finder(name, call)
        sys.meta_path.insert(0, finder)
        undo.append(finder.leave)

    # The list grows when the module comes; what is in it by then is undone.
    return all_of(undo)


class _Finder(importlib.abc.MetaPathFinder):
    """Lets the other finders find one module, and calls back once it has run."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._then = then

    def leave(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        self.leave()
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        run, then = spec.loader.exec_module, self._then

        def exec_module(module: ModuleType) -> None:
            run(module)
            then(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
