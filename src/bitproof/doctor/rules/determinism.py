"""Rules about deterministic algorithms: set too late, set by half, or not enough for what is used."""

from collections.abc import Iterator

from bitproof.doctor.catalogue import hazard
from bitproof.doctor.evidence import Evidence
from bitproof.doctor.hazard import Hazard


def deterministic_set_late(evidence: Evidence) -> Iterator[Hazard]:
    """Find deterministic algorithms that are asked for only after steps were taken."""
    asked = [event for event in evidence.events("deterministic-set") if event.data.get("mode")]
    if asked and asked[0].step >= 1 and not evidence.start.get("deterministic"):
        summary = f"deterministic algorithms are asked for after step {asked[0].step}"
        yield hazard("deterministic-set-late", summary, asked[0].where)


def deterministic_half(evidence: Evidence) -> Iterator[Hazard]:
    """Find settings that are a part of determinism only."""
    start = evidence.start
    asked = next((event.where for event in evidence.events("deterministic-set") if event.data.get("mode")), None)
    lacking = next((note for note in evidence.noted("no-deterministic-way") if note.rank == 0), None)
    if lacking is not None:
        operation = lacking.data["operation"]
        summary = (
            f"warn_only lets {operation} run, which has no deterministic way; asked for at {evidence.shown(asked)}"
        )
        yield hazard("deterministic-half", summary, lacking.where or asked)
    if not start.get("cuda"):
        return
    if start.get("deterministic") and start.get("cudnn_benchmark"):
        summary = "cuDNN measures which algorithm is fastest (torch.backends.cudnn.benchmark), and may choose another one next time"
        yield hazard("deterministic-half", summary, _line(evidence, "benchmark"))
    if start.get("cudnn_deterministic") and not start.get("deterministic"):
        summary = "only cuDNN is told to be deterministic; everything else on the device is not"
        yield hazard("deterministic-half", summary, _line(evidence, "deterministic"))


def _line(evidence: Evidence, flag: str) -> str | None:
    """Return the line at which the user's files set a flag of cuDNN's."""
    lines = (source.at(node) for source in evidence.sources for node in source.assignments_to(f"cudnn.{flag}"))
    return next(lines, None)


def cublas_variable_late(evidence: Evidence) -> Iterator[Hazard]:
    """Find cuBLAS's variable set after CUDA had started."""
    for note in evidence.noted("variable"):
        if note.data["cuda"] and note.rank == 0:
            summary = f"{note.data['name']} is set to {note.data['value']!r} when CUDA has started already"
            yield hazard("cublas-variable-late", summary, note.where)
            return


def cudnn_rnn_dropout(evidence: Evidence) -> Iterator[Hazard]:
    """Find RNNs whose dropout cuDNN keeps to itself."""
    for note in evidence.noted("rnn"):
        facts = note.data
        if (
            facts["device"] == "cuda"
            and facts["training"]
            and facts["layers"] > 1
            and facts["dropout"]
            and note.rank == 0
        ):
            summary = (
                f"{facts['class']} of {facts['layers']} layers with dropout {facts['dropout']:g}, on a CUDA device"
            )
            yield hazard("cudnn-rnn-dropout", summary, note.where)


RULES = (deterministic_set_late, deterministic_half, cublas_variable_late, cudnn_rnn_dropout)
