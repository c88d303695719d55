"""Checkpoints: who writes them, whether under their last name, and what else was in use when they were written."""

import os
import shutil
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler
from torch.optim import lr_scheduler

from bitproof.doctor.watch.generators import generators_of, held
from bitproof.doctor.watch.watch import Watch
from bitproof.trail.probes.files import path_of
from bitproof.trail.probes.patching import wrap
from bitproof.trail.site import caller_file, is_users, user_line

_PICKLED = {
    lr_scheduler.LRScheduler: "schedulers",
    lr_scheduler.ReduceLROnPlateau: "schedulers",
    GradScaler: "scalers",
}
_STATEFUL = tuple(_PICKLED)


def attach(watch: Watch) -> None:
    """Watch what is saved, and what is made that should be."""
    saves = _Saves(watch)
    wrap(torch, "save", saves.saving)
    wrap(torch.serialization, "save", saves.saving)
    for name in ("replace", "rename"):
        wrap(os, name, saves.renaming)
    wrap(shutil, "copyfile", saves.copying)
    wrap(lr_scheduler.LRScheduler, "__init__", saves.making(saves.schedulers))
    if "__init__" in vars(lr_scheduler.ReduceLROnPlateau):
        wrap(lr_scheduler.ReduceLROnPlateau, "__init__", saves.making(saves.schedulers))
    wrap(GradScaler, "__init__", saves.making(saves.scalers))


class _Saves:
    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._paths: set[str] = set()
        self.schedulers: dict[int, tuple[weakref.ref[Any], str | None]] = {}
        self.scalers: dict[int, tuple[weakref.ref[Any], str | None]] = {}

    def making(
        self, made: dict[int, tuple[weakref.ref[Any], str | None]]
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def __init__(thing: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807  # stands in for it
                original(thing, *args, **kwargs)
                made[id(thing)] = weakref.ref(thing), user_line()

            return __init__

        return make

    def saving(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
            for act in self._watch.on_save:
                act()
            result = original(obj, f, *args, **kwargs)
            path = path_of(f)
            if path is not None:
                self._paths.add(path)
            facts = {
                "path": path,
                "direct": is_users(caller_file()),
                "schedulers": [
                    where for thing, where in _alive(self.schedulers) if getattr(thing, "last_epoch", 0) > 0
                ],
                "scalers": [where for thing, where in _alive(self.scalers) if thing.is_enabled()],
                # What is pickled whole, alone or inside another object, shows no leaves in the trail.
                "whole": sorted(
                    {
                        _PICKLED[kind]
                        for _, thing in held(obj, "", _STATEFUL)
                        for kind in _PICKLED
                        if isinstance(thing, kind)
                    }
                ),
                "generators": [id(generator) for _, generator in generators_of(obj, "")],
            }
            self._watch.say("saved", facts)
            return result

        return save

    def renaming(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def rename(source: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(source, target, *args, **kwargs)
            if isinstance(source, (str, bytes, os.PathLike)):
                moved = Path(os.path.abspath(os.fsdecode(source)))  # noqa: PTH100  # resolve() would follow links
                if any(moved == Path(path) or moved in Path(path).parents for path in self._paths):
                    self._watch.say_once("renamed", {"path": str(moved)})
            return result

        return rename

    def copying(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def copyfile(source: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(source, target, *args, **kwargs)
            path = os.path.abspath(os.fsdecode(source))  # noqa: PTH100  # resolve() would follow links
            if path in self._paths:
                self._watch.say("copied", {"path": path})
            return result

        return copyfile


def _alive(made: dict[int, tuple[weakref.ref[Any], str | None]]) -> list[tuple[Any, str | None]]:
    return [(thing, where) for reference, where in made.values() if (thing := reference()) is not None]
