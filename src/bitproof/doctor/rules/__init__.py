"""Rules: small pure functions from evidence to hazards, one file a family."""

from bitproof.doctor.rules import checkpoints, data, determinism, seeding, streams

RULES = (*seeding.RULES, *streams.RULES, *determinism.RULES, *data.RULES, *checkpoints.RULES)

__all__ = ["RULES"]
