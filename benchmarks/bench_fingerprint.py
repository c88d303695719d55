"""How fast tensors are fingerprinted, against the speed at which this machine reads memory.

Both are measured in one run, in turn, on the state of a model of 10 million parameters (weights, gradients and two
moments: 160 MB in 384 tensors). Reading is torch's sum of int64 words, the fastest reader found here, with all
threads. The figure is the median over the pairs. Run it with nothing else on the machine:

    python benchmarks/bench_fingerprint.py
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from bitproof.fingerprint import digest_all

_REST = 0.05
"""Seconds before each measurement: OpenMP's threads spin for a while after torch's sum, and would take a core away."""


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="a small state, to see that it runs")
    options = parser.parse_args()
    scale = 100 if options.tiny else 1
    shapes = [(384, 1152), (384, 384), (384, 1536), (1536, 384), (1536,), (384,), (384,), (1152,)] * 6
    state = [torch.randn(shape)[: max(1, shape[0] // scale)].contiguous() for shape in shapes for _ in range(8)]
    size = sum(tensor.nbytes for tensor in state)
    words = torch.randint(0, 2**60, (size // 8,))
    pairs = [(_seconds(lambda: digest_all(state)), _seconds(words.sum)) for _ in range(3 if options.tiny else 31)]
    ratio = statistics.median(read / hashed for hashed, read in pairs)
    hashed, read = (statistics.median(pair[i] for pair in pairs) for i in (0, 1))
    print(
        f"fingerprint {size / hashed / 1e9:.1f} GB/s, reading {size / read / 1e9:.1f} GB/s ({size / 1e6:.0f} MB, "
        f"{torch.get_num_threads()} threads): fingerprint / reading = {ratio:.2f}, target ≥ 0.80"
    )


def _seconds(action: Callable[[], object]) -> float:
    time.sleep(_REST)
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
