"""Why something cannot be sent to a worker process."""

import multiprocessing
import pickle
from collections.abc import Mapping
from typing import Any

from bitproof.data.errors import UnpicklableError


def explain_pickling(error: Exception, loader: object, worker_options: Mapping[str, Any]) -> None:
    """Raise what is behind an error at the start of workers that are not forked, where pickling is; else return.

    Raises:
        UnpicklableError: the loader's dataset, collate_fn or worker_init_fn cannot be pickled.

    """
    method = _start_method(worker_options["multiprocessing_context"])
    if method == "fork" or not worker_options["num_workers"]:
        return
    for name in ("dataset", "collate_fn", "worker_init_fn"):
        value = getattr(loader, name)
        try:
            pickle.dumps(value)
        except Exception as cause:  # noqa: BLE001 - pickling runs the object's code: anything may be raised
            raise UnpicklableError(
                f"{name} of type {type(value).__name__} cannot be sent to workers started by {method!r}: {cause}. "
                "Define its class or function at the top of a module (not in a function, no lambda), open files in the "
                "worker instead of in __init__, or use multiprocessing_context='fork'."
            ) from error


def _start_method(context: Any) -> str:
    if isinstance(context, str):
        return context
    return str((context or multiprocessing).get_start_method())
