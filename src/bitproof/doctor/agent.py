"""Runs inside the training process: records it, and watches for what a trail does not tell."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import bitproof.prove.agent
from bitproof.doctor.watch import building, evaluating, loading, recomputing, saving, warning
from bitproof.doctor.watch.watch import Watch
from bitproof.trail.probes.patching import hide_from_compiler
from bitproof.trail.recorder import Recorder


def attach(settings: Mapping[str, Any]) -> None:
    """Attach the recorder, carry out the orders, and watch."""
    recorder = bitproof.prove.agent.attach(settings)
    watch_process(recorder, Path(settings["orders"]["control"]))


def watch_process(recorder: Recorder, control: Path) -> None:
    """Watch this process for the rest of its life; what is seen goes into the control folder."""
    watch = Watch(recorder, control)
    for part in (building, loading, saving, evaluating, recomputing, warning):
        part.attach(watch)
    hide_from_compiler("bitproof.doctor")
