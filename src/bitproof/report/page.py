"""Lines on a console: wrapped between words on a terminal, whole in a pipe, in characters that its encoding has."""

from collections.abc import Iterable, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

_NARROWEST = 40
_ASCII = str.maketrans(
    {"✓": "OK", "✗": "X", "·": "-", "→": "->", "…": "...", "–": "-", "│": "|", "−": "-", "×": "x", "’": "'"}
)


class Page:
    """Lines on a console, in characters that its encoding has."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._encoding = console.encoding
        self._ascii = not self._encoding.lower().startswith("utf")

    def line(self, *parts: str | tuple[str, str], indent: int = 0) -> None:
        """Print one line that is never broken; a part is a text, or a text and its style."""
        self._print(Text(" " * indent).append_text(self._text(parts)))

    def prose(self, *parts: str | tuple[str, str], indent: int = 0, hanging: int = 0) -> None:
        """Print words, broken between words at a terminal's width; more lines are indented by ``hanging`` too."""
        text = self._text(parts)
        if not self._console.is_terminal:
            self._print(Text(" " * indent).append_text(text))
            return
        width = max(self._console.width - indent - hanging, _NARROWEST)
        for number, line in enumerate(text.divide(_breaks(text.plain, width))):
            line.rstrip()
            self._print(Text(" " * (indent + (hanging if number else 0))).append_text(line))

    def gap(self) -> None:
        """Print an empty line."""
        self._print(Text())

    def table(self, head: Sequence[str], rows: Sequence[Sequence[tuple[str, str]]], indent: int = 0) -> None:
        """Print columns; each cell is a text and its style."""
        lines = [[(text, "dim") for text in head], *rows]
        lines = [[(self.fitted(text), style) for text, style in line] for line in lines]
        widths = [max(cell_len(line[column][0]) for line in lines) for column in range(len(head))]
        for line in lines:
            text = Text(" " * indent)
            for (cell, style), width in zip(line, widths, strict=True):
                text.append(cell, style).append(" " * (width - cell_len(cell) + 2))
            text.rstrip()
            self._print(text)

    def _text(self, parts: Iterable[str | tuple[str, str]]) -> Text:
        pairs = [(part, "") if isinstance(part, str) else part for part in parts]
        return Text.assemble(*((self.fitted(text), style) for text, style in pairs))

    def fitted(self, text: str) -> str:
        """Return a text in characters that the console's encoding has."""
        if not self._ascii:
            return text
        return text.translate(_ASCII).encode(self._encoding, "backslashreplace").decode(self._encoding)

    def _print(self, text: Text) -> None:
        self._console.print(text, soft_wrap=True, markup=False, highlight=False, emoji=False)


def _breaks(text: str, width: int) -> list[int]:
    """Return where to break lines of ``width`` cells: between words only, as rich would fold a long path."""
    breaks, place, used = [], 0, 0
    for word in text.split(" "):
        cells = cell_len(word)
        if used and used + cells > width:
            breaks.append(place)
            used = 0
        place += len(word) + 1
        used += cells + 1
    return breaks
