"""The shipped rules, held by the store itself."""

from hypothesis import HealthCheck, settings

from bitproof.store import Store
from bitproof.testing.store import StoreRules, machine_of


class TestStore(StoreRules):
    """The store keeps the rules of a store."""


TestStoreMachine = machine_of(Store).TestCase
TestStoreMachine.settings = settings(
    max_examples=12, stateful_step_count=12, deadline=None, suppress_health_check=list(HealthCheck)
)
