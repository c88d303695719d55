"""Rules from evidence to causes, one file a family."""

from bitproof.compare.causes import data, ending, numerics, randomness, state
from bitproof.compare.causes.case import Case
from bitproof.compare.causes.made import made
from bitproof.compare.verdict import Cause

_RULES = (*state.RULES, *randomness.RULES, *data.RULES, *numerics.RULES, *ending.RULES)
_ORDER = {"certain": 0, "likely": 1, "possible": 2}


def explain(case: Case) -> list[Cause]:
    """Run every rule over a case and return the causes, the surest first; ``unknown`` if no rule fits."""
    found = [cause for rule in _RULES for cause in rule(case)]
    if not found:
        d = case.divergence
        evidence = [
            f"first different: {d.facet} at step {d.step} ({', '.join(d.names) or 'no tensor names kept'})",
            "everything before it in causal order is equal",
        ]
        found = [
            made("unknown", "possible", f"no rule explains why {d.facet} differs at step {d.step}", evidence, None)
        ]
    return sorted(found, key=lambda cause: _ORDER[cause.confidence])
