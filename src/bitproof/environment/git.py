"""The code's state in git: which commit, and how the sources differ from it. Nothing is written, run or fetched."""

import functools
import os
import re
import subprocess
import sys
from pathlib import Path

from xxhash import xxh3_64_hexdigest

_SOURCES = tuple(f":/*.{suffix}" for suffix in ("py", "pyx", "c", "cc", "cpp", "cu", "cuh", "h", "yaml", "yml", "toml"))
"""Files whose changes count: what a run writes is none of them."""
_QUIET = ("-c", "core.fsmonitor=false", "-c", "diff.autoRefreshIndex=false")
_TOUCHED = re.compile(rb"^diff --git [^\n]*\n(?=diff --git |\Z)", re.MULTILINE)
"""A file of which only the time changed; git would leave it out if it might write to its index."""
_GIT_PATIENCE = 2.0


def script_folder() -> str:
    """Return the folder of the script that this process runs, or the current one."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    return str(Path(script).resolve().parent if script else Path.cwd())


@functools.cache
def state(folder: str) -> dict[str, str | bool | None]:
    """Return the commit that a folder is at, and a digest of how its repository's sources differ from it."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return {"git.commit": None, "git.dirty": None}
    options = ("--no-ext-diff", "--no-textconv", "--no-color", "--ignore-submodules=dirty")
    changes = _git(folder, "diff", *options, "HEAD", "--", *_SOURCES)
    dirty: str | bool | None = None
    if changes is not None:
        changes = _TOUCHED.sub(b"", changes)
        dirty = xxh3_64_hexdigest(changes) if changes else False
    return {"git.commit": commit.decode().strip(), "git.dirty": dirty}


def _git(folder: str, *words: str) -> bytes | None:
    """Ask git; None where there is no git, no repository or no answer in time. It runs no hook and uses no network."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    quiet = {"GIT_OPTIONAL_LOCKS": "0", "GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": "none", "LC_ALL": "C"}
    command = ["git", "-C", folder, "--no-pager", *_QUIET, *words]
    try:
        done = subprocess.run(
            command,
            env=kept | quiet,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_GIT_PATIENCE,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
