"""What several ranks of a run pay at each batch boundary: one agreement over gloo, on this machine.

python benchmarks/bench_ranks.py
"""

import argparse
import multiprocessing
import statistics
import tempfile
import time
import warnings

import torch
import torch.distributed as dist

from bitproof.run.ranks import Ranks


def agree(rank: int, world: int, folder: str, count: int) -> None:
    """Agree ``count`` times, as a run does after each batch, and print the median."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/join", rank=rank, world_size=world)
    ranks = Ranks()
    seconds = []
    for _ in range(count):
        start = time.perf_counter()
        ranks.most([1] * 9)
        seconds.append(time.perf_counter() - start)
    if rank == 0:
        print(f"{world} ranks: an agreement at a batch boundary takes {statistics.median(seconds) * 1e6:.0f} µs")
    ranks.close()
    dist.destroy_process_group()


def main() -> None:
    """Print the figure for two ranks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="a few times, to see that it runs")
    parser.add_argument("--ranks", type=int, default=2)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    count = 20 if options.tiny else 3000
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        others = [
            context.Process(target=agree, args=(rank, options.ranks, folder, count)) for rank in range(options.ranks)
        ]
        for process in others:
            process.start()
        for process in others:
            process.join()


if __name__ == "__main__":
    main()
