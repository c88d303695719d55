"""How long it takes to start: `import bitproof` without torch, and `bitproof --help`.

Whole processes are timed, and the bare interpreter's start is subtracted for the import. Run it with nothing else on
the machine:

    python benchmarks/bench_start.py
"""

import argparse
import statistics
import subprocess
import sys
import time


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="two runs, to see that it runs")
    runs = 2 if parser.parse_args().tiny else 21
    bare = _median([sys.executable, "-c", "pass"], runs)
    imported = _median([sys.executable, "-c", "import bitproof, sys; assert 'torch' not in sys.modules"], runs)
    shown = _median([sys.executable, "-m", "bitproof", "--help"], runs)
    print(f"import bitproof: {(imported - bare) * 1e3:.0f} ms (interpreter alone {bare * 1e3:.0f} ms), target ≤ 50 ms")
    print(f"bitproof --help: {shown * 1e3:.0f} ms, target ≤ 300 ms")


def _median(command: list[str], runs: int) -> float:
    times = []
    for _ in range(runs + 1):
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


if __name__ == "__main__":
    main()
