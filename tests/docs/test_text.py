"""What README and docs show is true of the code."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from bitproof.cli.main import app
from bitproof.compare.causes.catalogue import BY_CODE
from bitproof.facts.catalogue import FACTS

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "examples" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"\b([a-z]+(?:-[a-z]+)+) \((?:certain|likely|possible)\)")


def _commands() -> list[object]:
    """Return every `bitproof …` command line in fences, tables and running text."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        fenced = [line for _, block in _FENCE.findall(text) for line in block.splitlines()]
        inline = re.findall(r"`([^`\n]+)`", _FENCE.sub("", text))
        for line in [*fenced, *inline]:
            command = line.removeprefix("$ ").partition(" | ")[0].partition("  #")[0].strip()
            if (
                command.startswith("bitproof ")
                and "…" not in command
                and "--help" not in command
                and len(command.split()) > 2
            ):
                found.append(pytest.param(command, id=f"{page.stem}: {command}"[:90]))
    return found


@pytest.mark.parametrize("command", _commands())
def test_command_lines_parse(command: str) -> None:
    """Every command line that the pages show is one that the command line accepts."""
    name, *arguments = shlex.split(command)[1:]
    group = typer.main.get_command(app)
    assert group.commands[name].make_context(name, arguments).params  # type: ignore[attr-defined]


def test_python_blocks_compile() -> None:
    """Every Python block of the pages is valid Python."""
    blocks = [
        (page.name, block)
        for page in PAGES
        for kind, block in _FENCE.findall(page.read_text("utf-8"))
        if kind == "python"
    ]
    assert blocks
    for name, block in blocks:
        compile(block, name, "exec")


def test_codes_exist() -> None:
    """Every cause that the pages show with a confidence is in the catalogue."""
    shown = {code for page in PAGES for code in _CODE.findall(page.read_text("utf-8"))}
    assert "data-restarted" in shown
    assert shown <= BY_CODE.keys()


def _anchors(page: Path) -> set[str]:
    """Return the anchors that a site makes of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", _FENCE.sub("", page.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_somewhere() -> None:
    """Every relative link of the pages names a file of the repository, and a heading in it."""
    for page in PAGES:
        for target, _, anchor in re.findall(r"\]\(([^)#]*)(#([^)]+))?\)", page.read_text("utf-8")):
            if "://" not in target:
                other = page.parent / target if target else page
                assert other.exists(), f"{page.name}: {target}"
                assert not anchor or anchor in _anchors(other), f"{page.name}: {target}#{anchor}"


def test_the_reasons_name_every_fact() -> None:
    """README's reasons why a resume is not exact rest on all facts, each a link."""
    section = PAGES[0].read_text("utf-8").partition("## Why your resume is not exact")[2].partition("\n## ")[0]
    assert set(re.findall(r"\[([DC]\d+)\]\(docs/facts.md#", section)) == {fact.id for fact in FACTS}
