"""The page of the documentation about reports does what it says."""

import re
import subprocess
import sys
from pathlib import Path

DOCUMENT = Path(__file__).parents[2] / "docs" / "report.md"


def test_example_prints_what_the_page_shows(tmp_path: Path) -> None:
    """The example runs as it stands, prints the text below it and writes the page."""
    code, shown = re.findall(r"```(?:python|text)\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    done = subprocess.run([sys.executable, "-X", "utf8", "-c", code], capture_output=True, cwd=tmp_path, check=True)
    assert done.stdout.decode() == shown
    assert (tmp_path / "report.html").exists()
