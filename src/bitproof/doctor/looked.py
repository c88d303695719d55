"""What the steps that were seen could not show, since it did not happen in them."""

from collections.abc import Iterator

from bitproof.doctor.evidence import Evidence
from bitproof.doctor.rules.drawing import moved_inside

_CHECKPOINTS = ("generator-not-saved", "checkpoint-half-precision", "scheduler-not-saved", "scaler-not-saved")


def not_looked_for(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Yield each code that nothing could be said about, and why."""
    steps = evidence.steps
    count = f"{steps} step{'s' if steps != 1 else ''}"
    if len(evidence.legs) < 2:
        yield "ranks-share-stream", "the command runs on one rank"
    loaders = list(evidence.events("loader-started", "eval-loader-started"))
    if not any(event.data.get("workers", 0) > 1 for event in loaders):
        yield "workers-share-stream", "no loader has several workers"
    if not any(event.data.get("persistent_workers") for event in loaders):
        yield "persistent-workers-epoch", "no loader has persistent workers"
    elif len([event for event in loaders if event.data.get("persistent_workers")]) < 2:
        yield "persistent-workers-epoch", f"no second epoch began in {count}"
    if not any(evidence.noted("evaluation")):
        yield "validation-draws", f"no validation was seen in {count}"
    if not any(evidence.events("recompute")):
        yield "recompute-without-rng", "activation checkpointing is not used"
    if not evidence.start.get("cuda"):
        yield "cublas-variable-late", "no CUDA device is used"
        yield "cudnn-rnn-dropout", "no CUDA device is used"
        if not evidence.start.get("warn_only"):
            yield "deterministic-half", "no CUDA device is used; the flags of cuDNN count only there"
    if evidence.environment.get("env.PYTHONHASHSEED") not in {None, "", "random"}:
        yield "order-from-set", "PYTHONHASHSEED is fixed"
    elif not evidence.sources:
        yield "order-from-set", "the script's file is not known"
    if any(saved.writer == "bitproof.Run" for saved in evidence.saves):
        for code in (*_CHECKPOINTS, "checkpoint-in-place"):
            yield code, "a bitproof.Run saves, which writes whole checkpoints and itself names what is missing"
        return
    if evidence.writes_state:
        for code in _CHECKPOINTS:
            yield code, "the script writes states by other means than torch.save(), and those files are not looked into"
    elif not evidence.saves_for_resuming:
        for code in _CHECKPOINTS:
            yield code, f"no checkpoint with an optimizer's state was seen in {count}"
    elif any(evidence.noted("epoch-drew")) and not any(note.data["direct"] for note in evidence.noted("saved")):
        yield (
            "generator-not-saved",
            "a library writes the checkpoints; how it brings back the order of the data was not looked into",
        )
    elif _first_epoch_only(evidence):
        yield "generator-not-saved", f"no second epoch began in {count}"
    if len([saved for saved in evidence.saves if saved.for_resuming]) < 2:
        yield "checkpoint-in-place", f"no second checkpoint with an optimizer's state was seen in {count}"


def _first_epoch_only(evidence: Evidence) -> bool:
    """Tell whether an epoch's order or its workers' seed was drawn, and nothing since that would go on after a checkpoint."""
    drew = [note.data["again"] for note in evidence.noted("epoch-drew")]
    return bool(drew) and not any(drew) and not moved_inside(evidence.legs[0], "torch")
