"""The page: whole, safe, self-contained, and written all or not at all."""

import itertools
import json
import os
import re
import stat
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from bitproof.compare.verdict import (
    Cause,
    Curve,
    Divergence,
    Latent,
    Moment,
    Picture,
    Seam,
    Steps,
    Trails,
    Verdict,
    to_json,
)
from bitproof.environment import Difference
from bitproof.errors import MissingExtraError, UsageError
from bitproof.report import html

Make = Callable[..., Verdict]
VOID = {"meta", "br", "hr", "img", "link", "input"}


class Page(HTMLParser):
    """Reads a page strictly: every element closes in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element."""
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element without content."""
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        """Check that it is the innermost element that ends."""
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Note text and the element that holds it."""
        if data.strip():
            self.texts.append((self.open[-1] if self.open else "", data))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        """Return the attributes of each element of a tag."""
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def text(self) -> str:
        """The words that a reader sees."""
        return "\n".join(data for tag, data in self.texts if tag not in {"style", "script"})

    @property
    def answer(self) -> object:
        """The JSON answer in the page."""
        (found,) = [data for tag, data in self.texts if tag == "script"]
        return json.loads(found)


def test_page_parses_and_carries_the_answer(any_verdict: Verdict) -> None:
    """Every kind of verdict gives a well-formed page that says the headline and holds the JSON answer."""
    page = Page(html.page(any_verdict))
    assert len(page.all("h1")) == 1
    assert page.answer == json.loads(to_json(any_verdict))


def test_page_fetches_and_runs_nothing(any_verdict: Verdict) -> None:
    """There is no address in the page but the SVG namespace, no script that runs and no handler."""
    text = html.page(any_verdict)
    assert set(re.findall(r"[a-z]+://[^\s\"'<>]*", text)) <= {"http://www.w3.org/2000/svg"}
    assert "@import" not in text
    assert set(re.findall(r"url\(([^)]*)\)", text)) <= {"#stripes", "#dots", "#redone"}
    page = Page(text)
    assert [script["type"] for script in page.all("script")] == ["application/json"]
    for tag, attributes in page.elements:
        assert tag not in {"link", "img", "iframe", "object", "embed", "base"}
        assert "src" not in attributes
        assert not any(name.startswith("on") for name in attributes)
        assert (attributes.get("href") or "#").startswith("#")


def test_links_and_ids_agree(any_verdict: Verdict) -> None:
    """Every link leads to an element of the page, and no id is there twice."""
    page = Page(html.page(any_verdict))
    ids = [attributes["id"] for _, attributes in page.elements if attributes.get("id")]
    assert len(ids) == len(set(ids))
    assert {link["href"] for link in page.all("a")} <= {f"#{name}" for name in ids}


def test_headings_descend_one_level_at_a_time(any_verdict: Verdict) -> None:
    """A screen reader's outline has no hole."""
    levels = [int(tag[1]) for tag, _ in Page(html.page(any_verdict)).elements if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))


def test_text_is_escaped(make: Make) -> None:
    """Text from a run stays text: in elements, in attributes, in SVG and in the JSON."""
    evil = "</script><script>alert(1)</script><!--\"'&{{ 7*7 }}\x00\u202e"
    verdict = make(
        "diverged",
        divergence=Divergence(21, 0, evil, [evil], 1, 1),
        causes=[Cause(evil, "likely", evil, [evil], evil, evil)],
        latent=[Latent(evil, evil)],
        environment=[Difference(evil, evil, [evil])],
        unseen=[evil],
        output=[evil],
        message=evil,
        command=[evil],
        trails=Trails(evil, [evil], [evil]),
        fault=evil,
    )
    text = html.page(make("identical", trials=[verdict]))
    page = Page(text)
    assert len(page.all("script")) == 1
    assert not {"\x00", "\u202e"} & set(text)
    assert "49" not in page.text
    assert page.text.count("</script><script>alert(1)</script><!--") >= 10
    assert page.answer == json.loads(to_json(make("identical", trials=[verdict])))


def test_pictures_are_named_and_well_formed(make: Make) -> None:
    """The four pictures are there, are XML on their own, and each has a title that says what it shows."""
    section = html.section(make("diverged"), 0)
    assert [drawing.key for drawing in section.drawings] == ["legs", "facets", "losses", "differences"]
    for drawing in section.drawings:
        root = ET.fromstring(drawing.svg)
        assert root.get("role") == "img"
        title = root.find("{http://www.w3.org/2000/svg}title")
        assert title is not None
        assert len(title.text or "") > 20


def test_says_what_the_terminal_says(make: Make) -> None:
    """Sentence, causes with all evidence, remedy, place, environment, unseen, latent and trails are on the page."""
    text = Page(html.page(make("diverged"))).text
    for part in (
        "DIVERGED at step 21 in batch (input_ids)",
        "killed after step 25, resumed at step 20 (5 redone)",
        "512, 84, 1033",
        "save how many batches of the epoch were used",
        "train.py:41",
        "it was seeded at train.py:12",
        "env.ATEN_CPU_CAPABILITY",
        "not set",
        "the compiled step's intermediate values",
        "numpy's generator differs",
        "/runs/a b/resumed.trail",
    ):
        assert part in text


def test_trials_are_a_table_that_links_to_sections(make: Make) -> None:
    """Each trial is a row and a section, the top of the page is the worst of them."""
    page = Page(html.page(make("four-trials")))
    links = [link["href"] for link in page.all("a") if re.fullmatch(r"#trial-\d", link["href"] or "")]
    assert links == ["#trial-1", "#trial-2", "#trial-3", "#trial-4"]
    assert [section["id"] for section in page.all("section")] == ["trial-1", "trial-2", "trial-3", "trial-4"]
    assert "NOT RESUMED" in [data for tag, data in page.texts if tag == "span"]


@pytest.mark.parametrize("kind", ["long", "noisy"])
def test_page_of_a_long_run_is_small(make: Make, long_picture: Callable[[str], Picture], kind: str) -> None:
    """A picture of 20,000 steps stays below 400 kB, also where facets change at every step."""
    verdict = make(
        "diverged",
        picture=long_picture(kind),
        steps=Steps(20_000, 11_000, 0),
        seams=[Seam(Moment(9321), Moment(9000), 321)],
        divergence=Divergence(9001, 0, "batch", ["input_ids"], 1, 1),
    )
    assert len(html.page(verdict).encode()) < 400_000


def test_infinite_losses_are_counted(make: Make) -> None:
    """A loss that is infinite, not a number or unknown is not drawn, and the page says how many."""
    curves = [Curve("reference", [1, 2, 3, 4], [1.0, float("nan"), float("inf"), None])]
    section = html.section(make("identical", picture=Picture([], [], curves)), 0)
    (drawing,) = section.drawings
    assert drawing.caption == "Infinite or not a number, and so not drawn: 2 loss values."
    assert "nan" not in drawing.svg


def test_equal_losses_are_said_to_be_equal(make: Make) -> None:
    """Where no loss differs, the page says so instead of showing an empty logarithmic scale."""
    drawing = html.section(make("identical"), 0).drawings[-1]
    assert drawing.caption == "The losses are equal at all 64 steps that have both."
    assert "1e" not in drawing.svg


def test_replaces_a_page(make: Make, tmp_path: Path) -> None:
    """An older page is replaced, nothing else is left in the folder, and others may read the page."""
    path = tmp_path / "report.html"
    path.write_text("old")
    before = os.umask(0o022)
    try:
        html.write(make("identical"), path)
    finally:
        os.umask(before)
    assert path.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert list(tmp_path.iterdir()) == [path]
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_missing_folder(make: Make, tmp_path: Path) -> None:
    """A folder that is not there is named, with what to do."""
    with pytest.raises(UsageError, match=r"--html .*report\.html: the folder .*absent does not exist\. Make it"):
        html.write(make("identical"), tmp_path / "absent" / "report.html")
    assert list(tmp_path.iterdir()) == []


def test_path_is_a_folder(make: Make, tmp_path: Path) -> None:
    """A folder given as the page's path is refused."""
    with pytest.raises(UsageError, match="that is a folder"):
        html.write(make("identical"), tmp_path)


def test_folder_is_a_file(make: Make, tmp_path: Path) -> None:
    """A path below a file is refused with the system's reason."""
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="Not a directory"):
        html.write(make("identical"), tmp_path / "file" / "report.html")


def test_failed_write_keeps_the_old_page(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the new page cannot be put in place, the old one stays and nothing else does."""
    path = tmp_path / "report.html"
    path.write_text("old")

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(UsageError, match=r"could not be written \(Permission denied\)"):
        html.write(make("identical"), path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_without_jinja2(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra, the error gives the line that installs it."""
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(MissingExtraError, match=r"--html needs Jinja2.*pip install 'bitproof\[report\]'"):
        html.write(make("identical"), tmp_path / "report.html")


def luminance(colour: str) -> float:
    """Return the relative luminance of ``#rrggbb`` (WCAG 2.1, 2018)."""
    parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", [0, 1, 2], ids=["light", "dark", "print"])
@pytest.mark.parametrize(
    ("ink", "ground"),
    [
        *((ink, ground) for ink in ("ink", "soft", "resumed") for ground in ("page", "card", "code")),
        *((tone, f"{tone}-wash") for tone in ("good", "bad", "unclear")),
        *((ink, f"{tone}-wash") for ink in ("ink", "soft", "resumed") for tone in ("good", "bad", "unclear")),
    ],
)
def test_text_has_enough_contrast(scheme: int, ink: str, ground: str) -> None:
    """Every text colour on every ground it meets has the contrast that WCAG AA asks for, in each colour scheme."""
    style = (Path(html.__file__).parent / "templates" / "page.css").read_text(encoding="utf-8")
    colours = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", re.findall(r":root \{(.*?)\}", style, re.DOTALL)[scheme]))
    light, dark = sorted((luminance(colours[ink]), luminance(colours[ground])), reverse=True)
    assert (light + 0.05) / (dark + 0.05) >= 4.5
