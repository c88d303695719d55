"""Attach the recorder to this process, and take it away again."""

import atexit
import contextlib
import multiprocessing.util
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from bitproof import environment
from bitproof.__about__ import __version__
from bitproof.trail.journal import Journal
from bitproof.trail.probes.patching import Detach, hide_from_compiler
from bitproof.trail.recorder import Recorder
from bitproof.trail.settings import Settings

NOTES = "notes"
"""Below a trail: what processes that took no step have to say."""


def attach(settings: Settings) -> tuple[Recorder, Detach]:
    """Attach every probe to this process.

    Returns:
        The recorder, and the function that detaches it and closes its file.
    """
    # The probes import torch; the command line must not.
    from bitproof.trail.probes import backward, calls, files, loader, module, optimizer, scaler  # noqa: PLC0415

    hide_from_compiler("bitproof")
    import torch  # noqa: PLC0415

    # A generator that was seeded before the recorder came: torch remembers with what.
    initial = {} if settings.from_start else {"initial_seed": torch.initial_seed()}
    recorder = Recorder(Journal(settings, _identify, lambda: _describe(from_start=settings.from_start) | initial))
    _watch_forks(recorder)
    undo = [probe.attach(recorder) for probe in (files, calls, loader, module, backward, scaler, optimizer)]

    def detach() -> None:
        for remove in reversed(undo):
            remove()
        recorder.finish()

    return recorder, detach


_recorders: "weakref.WeakSet[Recorder]" = weakref.WeakSet()


def _watch_forks(recorder: Recorder) -> None:
    """Let a forked child start anew, and a child of multiprocessing finish its file: it ends without ``atexit``."""
    if not _recorders:
        os.register_at_fork(after_in_child=_after_fork)
    _recorders.add(recorder)
    multiprocessing.util.register_after_fork(recorder, _finish_with_process)


def _after_fork() -> None:
    for recorder in list(_recorders):
        recorder.after_fork()


def _finish_with_process(recorder: Recorder) -> None:
    multiprocessing.util.Finalize(recorder, recorder.finish, exitpriority=0)


def saving(path: str, writer: str, tree: Any) -> Callable[[], None]:
    """Look at a tree that is about to be saved by bitproof itself, for every recorder of this process.

    Returns:
        What is to be called once it is saved; the event then has the step and micro-step of now.
    """
    from bitproof.trail.probes.files import saved_row  # noqa: PLC0415  # imports torch

    seen = [(recorder, recorder.now, saved_row(recorder, tree)) for recorder in list(_recorders)]

    def committed() -> None:
        for recorder, at, row in seen:
            recorder.event("file-saved", {"path": path, "writer": writer}, row, at=at)

    return committed


def attach_for_life(settings: Settings) -> Recorder:
    """Attach to this process until it ends; one that took no step leaves a note."""
    recorder, _ = attach(settings)
    owner = os.getpid()

    def end() -> None:
        if os.getpid() != owner:
            return
        if recorder.step == 0:
            leave_note(settings.trail, settings.leg, {"events": recorder.early_events, "torch": True})
        recorder.finish()

    atexit.register(end)
    return recorder


def leave_note(trail: Path, leg: int, facts: dict[str, Any]) -> None:
    """Write down what a process that took no step saw, for the message to the user."""
    folder = trail / NOTES
    folder.mkdir(parents=True, exist_ok=True)
    note = {"leg": leg, "pid": os.getpid(), "argv": sys.argv, "python": sys.executable, **facts}
    (folder / f"leg-{leg:03d}.{os.getpid()}.json").write_bytes(msgspec.json.encode(note))


@contextlib.contextmanager
def recording(
    trail: str | os.PathLike[str], *, every: int = 100, append: bool = False, force: bool = False
) -> Iterator[Recorder]:
    """Record the training steps that run inside the ``with`` block, for instance in a notebook.

    Seed and build the model inside the block too, so that a difference between two recordings can be traced to them.

    Args:
        trail: folder to write.
        every: beyond the latest 1,000 steps, per-tensor digests are kept for each ``every``-th step.
        append: add a leg to a trail that exists: the run goes on.
        force: replace a trail that exists.

    Raises:
        TrailExistsError: there is something at the path, and neither option fits it.

    Example::

        with bitproof.recording("a.trail"):
            train()
    """
    from bitproof.trail.reader import claim_folder  # noqa: PLC0415

    folder = Path(trail)
    leg = claim_folder(folder, append=append, force=force)
    recorder, detach = attach(Settings(folder, leg, every, from_start=False))
    try:
        yield recorder
    finally:
        detach()


def _identify() -> tuple[int, int]:
    """Return (rank, world size), from torch.distributed or from the launcher's variables."""
    import torch.distributed as dist  # noqa: PLC0415

    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def _describe(*, from_start: bool) -> dict[str, Any]:
    return {
        "bitproof": __version__,
        "argv": sys.argv,
        "cwd": str(Path.cwd()),
        "environment": environment.describe(),
        "hash_probe": hash("bitproof"),
        "from_start": from_start,
    }
