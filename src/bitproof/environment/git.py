"""The code's state in git: which commit, and how the sources differ from it. Nothing is written, run or fetched."""

import functools
import os
import subprocess
import sys
from pathlib import Path

from xxhash import xxh3_64_hexdigest

_SOURCES = tuple(f":/*.{suffix}" for suffix in ("py", "pyx", "c", "cc", "cpp", "cu", "cuh", "h", "yaml", "yml", "toml"))
"""Files whose changes count: what a run writes is none of them."""
_GIT_PATIENCE = 2.0


def script_folder() -> str:
    """Return the folder of the script that this process runs, or the current one."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    return str(Path(script).resolve().parent if script else Path.cwd())


@functools.cache
def state(folder: str) -> dict[str, str | bool | None]:
    """Return the commit that a folder is at, and a digest of how its repository's sources differ from it."""
    commit = _git(folder, "rev-parse", "HEAD")
    changes = None
    if commit is not None:
        options = ("--no-ext-diff", "--no-textconv", "--no-color", "--ignore-submodules=dirty")
        changes = _git(folder, "diff", *options, "HEAD", "--", *_SOURCES)
    dirty = None if changes is None else xxh3_64_hexdigest(changes) if changes else False
    return {"git.commit": commit.decode().strip() if commit is not None else None, "git.dirty": dirty}


def _git(folder: str, *words: str) -> bytes | None:
    """Ask git; None where there is no git, no repository or no answer in time. It runs no hook and uses no network."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    quiet = {"GIT_OPTIONAL_LOCKS": "0", "GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": "none", "LC_ALL": "C"}
    command = ["git", "-C", folder, "--no-pager", "-c", "core.fsmonitor=false", *words]
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
