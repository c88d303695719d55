"""SVG as text: pictures as wide as their page, whose letters keep their size.

Horizontal places are percentages of the width, vertical ones are pixels: so a picture fits a phone and a print alike
without shrinking what is written in it. Colours come from the page's style sheet, by class.
"""

import html


def element(name: str, *children: str, **attributes: str | float) -> str:
    """Write one element.

    Args:
        name: its tag.
        children: its content, already SVG; use :func:`escape` for text.
        attributes: a trailing underscore is dropped (``class_``), an inner one becomes a hyphen; floats are written
            with three decimals at most.
    """
    written = "".join(f' {_attribute(key)}="{_number(value)}"' for key, value in attributes.items())
    content = "".join(children)
    return f"<{name}{written}>{content}</{name}>" if content else f"<{name}{written}/>"


def escape(text: str) -> str:
    """Escape text for an element or an attribute."""
    return html.escape(text)


def text(content: str, **attributes: str | float) -> str:
    """Write a text element of unescaped content."""
    return element("text", escape(content), **attributes)


def picture(height: float, label: str, *children: str) -> str:
    """Write an accessible picture as wide as its place; ``label`` says in words what it shows."""
    title = element("title", escape(label))
    return element(
        "svg",
        title,
        *children,
        xmlns="http://www.w3.org/2000/svg",
        class_="picture",
        role="img",
        width="100%",
        height=height,
    )


def stretched(width: float, height: float, *children: str) -> str:
    """Write a part whose own units are stretched to the picture's width: for lines, never for text."""
    return element(
        "svg",
        *children,
        width="100%",
        height=height,
        viewBox=f"0 0 {_number(width)} {_number(height)}",
        preserveAspectRatio="none",
    )


def percent(share: float) -> str:
    """Return a share of the width (0 to 1) as a percentage."""
    return f"{100 * share:.3f}".rstrip("0").rstrip(".") + "%"


def _attribute(key: str) -> str:
    return key if key in {"viewBox", "preserveAspectRatio"} else key.rstrip("_").replace("_", "-")


def _number(value: str | float) -> str:
    if isinstance(value, str):
        return escape(value)
    return f"{value:.3f}".rstrip("0").rstrip(".")
