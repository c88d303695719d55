"""The installed packages, from the names of their folders alone: no file is opened."""

import functools
import os
import re
import sys
from pathlib import Path

_DISTRIBUTION = re.compile(r"([^~].*)-(\d[^-]*)(?:\.dist-info|(?:-py[\d.]+)?\.egg-info)")


@functools.cache
def installed() -> dict[str, str]:
    """Return the version of each installed package, by its normalised name."""
    found: dict[str, str] = {}
    for folder in sys.path:
        if Path(folder).name in {"site-packages", "dist-packages"} and Path(folder).is_dir():
            for name in sorted(os.listdir(folder)):  # noqa: PTH208  # names are enough
                match = _DISTRIBUTION.fullmatch(name)
                if match:
                    found.setdefault(re.sub(r"[-_.]+", "-", match[1]).lower(), match[2])
    return dict(sorted(found.items()))
