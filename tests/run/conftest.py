"""Leave generators, threads and signal handlers as they were."""

import random
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))  # run_training


@pytest.fixture(autouse=True)
def _put_back() -> Iterator[None]:
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    random.setstate(states[0])
    np.random.set_state(states[1])  # noqa: NPY002
    torch.set_rng_state(states[2])
    assert {number: signal.getsignal(number) for number in handlers} == handlers
