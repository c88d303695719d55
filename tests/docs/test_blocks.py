"""Every code block of README and docs runs.

A block is ``python`` (run, one after another in one namespace a page), ``bash`` (each line run, in a folder that holds a
training script), ``console`` (run and its output compared) or ``text`` (shown, not run). A page whose Python is tests is
run by pytest.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TRAIN = Path(__file__).parent / "scripts" / "train.py"
"""A script that resumes exactly, as the pages mean by ``train.py``."""
PAGES = [ROOT / "README.md", ROOT / "examples" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
LOOP = """
import torch
torch.manual_seed(0)
dataset = torch.utils.data.TensorDataset(torch.randn(3840, 8), torch.randint(0, 3, (3840,)))
model = torch.nn.Linear(8, 3)
optimizer = torch.optim.AdamW(model.parameters())
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 100)
criterion = torch.nn.functional.cross_entropy
validate = lambda model: float(criterion(model(dataset.tensors[0]), dataset.tensors[1]).detach())
"""
BEFORE = {
    "run": LOOP,
    "trail": LOOP
    + """
def train():
    for rows, labels in torch.utils.data.DataLoader(dataset, 640):
        criterion(model(rows), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
""",
}
"""What a page's first block takes for granted, by the page's name."""


def _blocks(page: Path, kind: str) -> list[str]:
    return [block for _, found, block in FENCE.findall(page.read_text("utf-8")) if found == kind]


def _is_tests(page: Path) -> bool:
    return any("def test_" in block for block in _blocks(page, "python"))


def _folder(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    shutil.copy(TRAIN, tmp_path)
    return tmp_path


def _environment() -> dict[str, str]:
    # `python` and `bitproof` are those that run the tests.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return os.environ | {"PATH": path, "OMP_NUM_THREADS": "1", "NO_COLOR": "1", "COLUMNS": "200"}


def test_every_block_says_what_it_is() -> None:
    """A fence without a kind would be neither run nor known to be mere text."""
    kinds = {(page.name, kind) for page in PAGES for _, kind, _ in FENCE.findall(page.read_text("utf-8"))}
    assert not {(page, kind) for page, kind in kinds if kind not in {"python", "bash", "console", "text"}}


@pytest.mark.parametrize(
    "page",
    # Each block of facts.md changes its process; tests/facts runs them, one process each.
    [
        # The page on Run starts a dozen commands.
        pytest.param(p, id=p.stem, marks=[pytest.mark.slow] if p.stem == "run" else [])
        for p in PAGES
        if _blocks(p, "python") and not _is_tests(p) and p.stem != "facts"
    ],
)
def test_python_runs(page: Path, tmp_path: Path) -> None:
    """The Python blocks of a page run as they stand, one after another."""
    code = "\n".join([BEFORE.get(page.stem, ""), *_blocks(page, "python")])
    (tmp_path / "page.py").write_text(code, "utf-8")
    shell = [line for block in _blocks(page, "bash") for line in block.splitlines() if page.stem == "run"]
    subprocess.run([sys.executable, "-W", "error", "page.py"], cwd=tmp_path, env=_environment(), check=True)
    for line in shell:
        subprocess.run(line, shell=True, cwd=tmp_path, env=_environment(), check="diff" not in line)


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if _is_tests(page)], ids=lambda page: page.stem)
def test_tests_pass(page: Path, tmp_path: Path) -> None:
    """The pages' examples of tests pass, each in a module of its own."""
    for number, block in enumerate(_blocks(page, "python")):
        (tmp_path / str(number)).mkdir()
        folder = _folder(tmp_path / str(number))
        (folder / "test_page.py").write_text(block, "utf-8")
        code = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "test_page.py"]
        subprocess.run(code, cwd=folder, env=_environment(), check=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [p for p in PAGES if _blocks(p, "bash") and p.stem != "run"], ids=lambda page: page.stem
)
def test_commands_run(page: Path, tmp_path: Path) -> None:
    """The commands of a page work on a script that resumes exactly."""
    folder = _folder(tmp_path)
    for line in [line for block in _blocks(page, "bash") for line in block.splitlines()]:
        if not line.startswith("make "):  # the workflow itself
            subprocess.run(line, shell=True, cwd=folder, env=_environment(), check=True)


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if _blocks(page, "console")], ids=lambda page: page.stem)
def test_output_is_what_the_page_shows(page: Path, tmp_path: Path) -> None:
    """What a page shows below a command is how the command's output begins, to the letter."""
    for block in _blocks(page, "console"):
        command, shown = block.removeprefix("$ ").split("\n", 1)
        done = subprocess.run(
            command, shell=True, cwd=_folder(tmp_path), env=_environment(), capture_output=True, text=True, check=False
        )
        assert done.stdout[: len(shown)] == shown
