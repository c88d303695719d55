"""Memory that a resume needs."""

import subprocess
import sys
from pathlib import Path

import pytest
from run_large import LARGEST

SCRIPT = Path(__file__).with_name("run_large.py")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's /proc")
def test_a_resume_of_a_gigabyte_holds_no_tensor_twice(tmp_path: Path) -> None:
    """1 GB of weights and moments put back into existing ones: anonymous memory rises by at most 1.1 × the largest tensor."""

    def run(what: str) -> list[float]:
        command = [sys.executable, str(SCRIPT), what, str(tmp_path)]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return [float(word) for word in said.split()]

    _, *saved = run("save")
    stored = sum(path.stat().st_size for path in tmp_path.rglob("*.safetensors"))
    assert stored > 1e9
    risen, *restored = run("resume")
    print(
        f"{stored / 1e9:.3f} GB put back, peak {risen / 1e6:.1f} MB above what was there, largest tensor {LARGEST / 1e6:.1f} MB"
    )
    assert restored == saved
    assert risen <= 1.1 * LARGEST
