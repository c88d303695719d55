"""The page on the store runs, and the benchmark does not rot."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every block of docs/store.md runs, one after another."""
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "store.md").read_text(), re.DOTALL)
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "docs/store.md", "exec"), names)
    assert len(blocks) == 3


@pytest.mark.slow
def test_the_benchmark_runs() -> None:
    """The benchmark runs on a tiny state and prints each figure."""
    code = [sys.executable, str(ROOT / "benchmarks" / "bench_store.py"), "--tiny"]
    done = subprocess.run(code, capture_output=True, text=True, check=True, env=os.environ)
    for title in ("Commit", "Saved again", "Loop blocked", "Load", "opened lazily", "10 checkpoints"):
        assert title in done.stdout
