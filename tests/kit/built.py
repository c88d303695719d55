"""Legs that are put together by hand, to test pure rules."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bitproof.fingerprint import digest_text
from bitproof.trail.reader import Detail, Leg
from bitproof.trail.records import Event, MicroHead, StepHead, Tensors, pack_digests


def tensors(content: dict[str, Any], kind: str = "float32[2]") -> Tensors:
    """Return a facet whose tensors have the digests of some texts."""
    names = tuple(sorted(content))
    digests = tuple(digest_text(str(content[name])) for name in names)
    return Tensors(names, (kind,) * len(names), digests, (b"",) * len(names))


def micro(
    batch: Any, *, loss: Any = None, indices: Sequence[int] | None = None, samples: Sequence[Any] = ()
) -> MicroHead:
    """Return a backward pass."""
    return MicroHead(
        batch=digest_text(str(batch)),
        samples=pack_digests([digest_text(str(s)) for s in samples]),
        indices=list(indices) if indices is not None else None,
        loss=digest_text(str(batch if loss is None else loss)),
        loss_value=None,
        loader=None,
    )


def leg(
    steps: Sequence[dict[str, dict[str, Any]]],
    *,
    batches: Sequence[Any] | None = None,
    micros: Sequence[Sequence[MicroHead]] | None = None,
    events: Sequence[Event] = (),
    rng: Sequence[dict[str, Any]] | None = None,
    rates: Sequence[float] | None = None,
    environment: dict[str, Any] | None = None,
) -> Leg:
    """Return a leg whose steps have facets with named contents."""
    heads, details = [], {}
    for i, facets in enumerate(steps):
        found = {facet: tensors(content) for facet, content in facets.items()}
        passes = list(micros[i]) if micros is not None else [micro(batches[i] if batches is not None else i)]
        roots = {facet: digest_text(repr(sorted(content.items()))) for facet, content in facets.items()}
        roots |= {
            "batch": digest_text(str([m.batch for m in passes])),
            "loss": digest_text(str([m.loss for m in passes])),
        }
        states = {name: digest_text(str(state)) for name, state in (rng[i] if rng is not None else {}).items()}
        heads.append(
            StepHead(i + 1, roots, passes, states, states, 1, False, 0.0, rates[i] if rates is not None else None)
        )
        given = tuple(tensors({"x": m.batch}) for m in passes)
        losses = tuple(tensors({"loss": m.loss}) for m in passes)
        details[i + 1] = Detail(found, given, losses, (None,) * len(passes))
    meta = {"environment": environment or {}, "world_size": 1}
    ended = Event(len(steps), 0, "ended", {}, None)
    made = Leg(Path("built.leg"), 1, 0, meta, heads, None, [*events, ended], {})
    made._details.update(details)
    return made


def state(weights: Any, optimizer: Any = None, rate: Any = 0.1) -> dict[str, dict[str, Any]]:
    """Return a step's state: one weight, perhaps one moment, one rate."""
    moments = {} if optimizer is None else {"SGD/w.momentum": optimizer}
    return {"weights": {"Net/w": weights}, "optimizer": moments, "hyperparameters": {"SGD/group0.lr": rate}}
