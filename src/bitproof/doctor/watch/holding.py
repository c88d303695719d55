"""Generators, followed from step to step: the process's, and the script's own in loaders, models and the script itself."""

import sys
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader

from bitproof.doctor.watch.generators import Generator, Tracked, attributes_of, generators_of, is_global, of_process
from bitproof.doctor.watch.watch import Watch
from bitproof.state.generators import GENERATORS
from bitproof.trail.site import user_line

_MOST_TRACKED = 64


class Held:
    """Follows the generators that it finds, and notes what those that go on from step to step are seen as.

    Args:
        watch: is told.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._tracked: dict[int, tuple[Tracked, str | None]] = {}
        self._global: set[int] = set()
        self._passed_over: set[int] = set()
        """Generators from which loaders draw nothing but a seed for their workers."""
        watch.on_step.append(self._step_taken)
        watch.on_save.append(self.look)

    def track_loader(self, loader: DataLoader[Any]) -> None:
        """Follow the generators of a loader that is about to be iterated."""
        if hasattr(loader, "state_dict"):  # torchdata's: what it holds is in its own state
            return
        held: list[tuple[str, Any]] = [("sampler", loader.sampler), ("batch_sampler", loader.batch_sampler)]
        if not loader.num_workers:
            held = [("dataset", loader.dataset), ("collate_fn", loader.collate_fn), *held]
        for name, holder in held:
            for path, generator in generators_of(holder, name):
                self._track(path, generator)
        if loader.generator is not None and id(loader.generator) not in self._tracked:
            self._passed_over.add(id(loader.generator))

    def _step_taken(self, step: int) -> None:
        if step == 1:
            for name, generator in of_process().items():
                self._track(name, generator)
                self._global.add(id(generator))
            for path, generator in [*self._of_models(), *_of_script()]:
                if id(generator) not in self._passed_over:
                    self._track(path, generator)
        self.look()

    def _of_models(self) -> Iterator[tuple[str, Generator]]:
        for name, module in self._watch.recorder.registry.modules():
            for key, value in attributes_of(module).items():
                if isinstance(value, GENERATORS) and not is_global(value):
                    yield f"{name}.{key}", value

    def _track(self, path: str, generator: Generator) -> None:
        if id(generator) not in self._tracked and len(self._tracked) < _MOST_TRACKED:
            self._tracked[id(generator)] = Tracked(path, generator), user_line()

    def look(self) -> None:
        """Look at the known generators, and say of each that goes on from step to step what it is seen as."""
        for tracked, where in self._tracked.values():
            tracked.look(self._watch.step)
            if tracked.moved and (tracked.keyed or tracked.unsaid):
                facts = {
                    "name": tracked.name,
                    "class": type(tracked.generator).__name__,
                    "id": id(tracked.generator),
                    "global": id(tracked.generator) in self._global,
                    "shown": tracked.unsaid,
                    "keyed": tracked.keyed,
                }
                self._watch.say("generator", facts, where)
                tracked.unsaid, tracked.moved = [], not tracked.keyed


def _of_script() -> Iterator[tuple[str, Generator]]:
    """Yield the generators that stand in the script itself."""
    for name, value in list(vars(sys.modules["__main__"]).items()):
        if isinstance(value, GENERATORS) and not is_global(value):
            yield name, value
