"""The settings of an environment that matter for exactness, each with what hangs on it."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple


class Setting(NamedTuple):
    """One setting.

    Args:
        key: as the environment names it.
        value: in words.
        matter: what hangs on it.
    """

    key: str
    value: str
    matter: str


def worth_a_word(environment: Mapping[str, Any]) -> Iterator[Setting]:
    """Yield the settings on which a run's bits depend here, the likeliest to matter first."""
    given = environment.get
    if given("torch.version"):
        version = str(given("torch.version"))
        yield Setting("torch.version", version, "another release may compute other last bits (D3)")
        threads = given("torch.threads")
        fixed = "" if given("env.OMP_NUM_THREADS") else ", not fixed by OMP_NUM_THREADS"
        yield Setting("torch.threads", f"{threads}{fixed}", "another number adds in another order (D7)")
        yield Setting("torch.cpu_capability", str(given("torch.cpu_capability")), "another one rounds otherwise (D8)")
        on = given("torch.deterministic")
        value = ("on, warnings only" if given("torch.deterministic_warn_only") else "on") if on else "off"
        yield Setting("torch.deterministic", value, "when off, operations may add in parallel in any order (D6)")
    devices = given("torch.devices")
    if devices:
        yield Setting("torch.devices", ", ".join(map(str, devices)), "another device computes other last bits")
        variable = given("env.CUBLAS_WORKSPACE_CONFIG")
        yield Setting(
            "env.CUBLAS_WORKSPACE_CONFIG", variable or "not set", "deterministic cuBLAS needs :4096:8 or :16:8"
        )
        precision = given("torch.matmul_precision")
        yield Setting("torch.matmul_precision", str(precision), "highest keeps float32 products in float32")
    seed = given("env.PYTHONHASHSEED")
    value = "not set" if seed in {None, "", "random"} else str(seed)
    yield Setting("env.PYTHONHASHSEED", value, "when not set, sets of strings have another order in every process")
