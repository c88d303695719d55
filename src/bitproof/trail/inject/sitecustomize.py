"""Put first on PYTHONPATH by ``bitproof record``: attaches the recorder when torch is imported.

Only the standard library is used here, since any Python below the command runs this, also one without bitproof. The
user's own ``sitecustomize`` is run afterwards.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
from typing import Any


def _note(text: str) -> None:
    """Tell the launcher why nothing is recorded in this process."""
    settings = json.loads(_SETTINGS)
    folder = os.path.join(settings["trail"], "notes")
    os.makedirs(folder, exist_ok=True)
    note = {"leg": settings["leg"], "pid": os.getpid(), "argv": sys.argv, "python": sys.executable, "problem": text}
    with open(os.path.join(folder, "problem.%d.json" % os.getpid()), "w") as file:
        json.dump(note, file)


def _attach() -> None:
    settings = json.loads(_SETTINGS)
    module, function = settings["agent"].split(":")
    try:
        getattr(importlib.import_module(module), function)(settings)
    except ImportError as error:
        _note(
            "bitproof cannot be imported by %s: %s. Install bitproof into the interpreter that trains."
            % (sys.executable, error)
        )
    except Exception as error:  # noqa: BLE001  # whatever it is, it is ours, and the script must go on as if we were not here
        _note("bitproof itself failed in this process, please report it: %s: %s" % (type(error).__name__, error))


class _TorchFinder(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            run(module)
            _attach()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _chain() -> None:
    """Run the ``sitecustomize`` that this one hides, if there is one."""
    here = os.path.dirname(os.path.abspath(__file__))
    others = [path for path in sys.path if os.path.abspath(path or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


# Read now: the script may clear its environment before it imports torch.
_SETTINGS = os.environ.get("BITPROOF_AGENT", "")
if _SETTINGS:
    sys.meta_path.insert(0, _TorchFinder())
_chain()
