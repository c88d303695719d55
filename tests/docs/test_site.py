"""The documentation builds as a site."""

import os
import subprocess
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]


def test_site_builds(tmp_path: Path) -> None:
    """No page is missing from the navigation, no link or anchor is broken."""
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path / "site"],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "causes" / "index.html").exists()


def test_every_page_is_in_the_navigation() -> None:
    """A page that no menu leads to is not found by a reader."""
    listed = (ROOT / "mkdocs.yml").read_text("utf-8")
    assert yaml.safe_load(listed)["docs_dir"] == "docs"
    assert not [page.name for page in (ROOT / "docs").glob("*.md") if f"{page.name}\n" not in listed]
