"""What can change bits is described, and differences are named, the likeliest first."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import bitproof
from bitproof.compare.judge import compare_trails
from bitproof.environment import LIKELIEST, Difference, compare, describe, git, machine, packages
from bitproof.trail.reader import Trail, read_trail
from kit import proofs

SHOW = """
import json, sys, torch
from bitproof import environment
print(json.dumps(environment.describe()))
"""


def described(code: str = SHOW, **variables: str) -> dict[str, object]:
    """Describe the environment of a fresh process."""
    environment = {**os.environ, "PYTHONPATH": str(Path(bitproof.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONHASHSEED", None)
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment | variables, capture_output=True, text=True, check=True
    )
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def usual() -> dict[str, object]:
    """This machine's environment."""
    return described()


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"OMP_NUM_THREADS": "2"}, ["torch.threads", "env.OMP_NUM_THREADS"]),
        ({"ATEN_CPU_CAPABILITY": "default"}, ["torch.cpu_capability", "env.ATEN_CPU_CAPABILITY"]),
        ({"PYTHONHASHSEED": "5"}, ["env.PYTHONHASHSEED"]),
        ({}, []),
    ],
    ids=["threads", "capability", "hash seed", "nothing"],
)
def test_a_variable_shows_in_its_keys(usual: dict[str, object], variables: dict[str, str], expected: list[str]) -> None:
    """Threads, CPU capability and hash seed each show where they act, the effect before the variable; else all is equal."""
    assert [difference.key for difference in compare(usual, described(**variables))] == expected


def test_settings_of_torch_show() -> None:
    """Flags that a script sets, and the start method of its workers, are described as they are then."""
    code = SHOW.replace(
        "print(",
        """import multiprocessing
before = environment.describe()
torch.use_deterministic_algorithms(True, warn_only=True)
torch.set_default_dtype(torch.float64)
torch.set_float32_matmul_precision("high")
torch.backends.mkldnn.enabled = False
torch.set_num_threads(2)
multiprocessing.set_start_method("spawn")
found = {d.key: [d.reference, d.other] for d in environment.compare(before, environment.describe())}
print(""",
    ).replace("environment.describe()))", "found))")
    start = {"fork", "forkserver", "spawn"}
    found = described(code)
    assert set(found) == {
        "torch.deterministic",
        "torch.deterministic_warn_only",
        "torch.default_dtype",
        "torch.matmul_precision",
        "torch.fp32_precision.cuda.matmul",
        "torch.fp32_precision.mkldnn.matmul",
        "torch.mkldnn",
        "torch.threads",
        "multiprocessing.start_method",
    }
    assert found["torch.threads"] == [1, 2]
    assert set(found["multiprocessing.start_method"]) <= start  # type: ignore[call-overload]


def test_without_torch() -> None:
    """A process that has not imported torch is described without it, and does not import it for that."""
    found = described(SHOW.replace(", torch", "").replace("print(", "assert 'torch' not in sys.modules\nprint("))
    assert not any(key.startswith("torch.") for key in found)
    assert {"python.version", "os", "cpu.model", "cpu.count", "package.torch", "package.numpy"} <= set(found)
    assert found["cpu.model"]


def test_compare_lists_the_likeliest_first() -> None:
    """Differences come in the order of what is likeliest to change bits, keys that only one side has among them."""
    reference = {"os": "a", "torch.threads": 1, "env.WORLD_SIZE": None, "package.numpy": "1", "zz": 1, "same": 2}
    other = {"os": "b", "torch.threads": 2, "env.WORLD_SIZE": "2", "package.numpy": "2", "same": 2}
    assert compare(reference, other) == [
        Difference("torch.threads", 1, 2),
        Difference("package.numpy", "1", "2"),
        Difference("env.WORLD_SIZE", None, "2"),
        Difference("os", "a", "b"),
        Difference("zz", 1, None),
    ]
    assert compare(other, other) == []


def test_packages_that_one_side_has_are_one_difference() -> None:
    """Packages that only one environment has are listed together, last; one with another version by itself."""
    reference = {"package.a": "1", "package.numpy": "1", "package.b-c": "2", "os": "x"}
    other = {"package.d": "1", "package.numpy": "2", "os": "y"}
    assert compare(reference, other) == [
        Difference("package.numpy", "1", "2"),
        Difference("os", "x", "y"),
        Difference("packages.only", ["a", "b-c"], ["d"]),
    ]
    assert compare({}, other)[-1] == Difference("packages.only", [], ["d", "numpy"])


def test_likeliest_has_no_doubles() -> None:
    """Each beginning has one place in the order."""
    assert len(set(LIKELIEST)) == len(LIKELIEST)


def test_the_description_is_stable() -> None:
    """Two looks in one process are equal, and everything can be written as JSON."""
    assert describe() == describe()
    assert json.loads(json.dumps(describe())) == describe()


# --- two recorded runs ---------------------------------------------------------------------------------------------

TRAINS = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    optimizer.zero_grad()
    model(torch.rand(3, 4)).square().mean().backward()
    optimizer.step()
"""


@pytest.fixture(scope="module")
def trails(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two trails of one script: as usual, and with other threads, hash seed and CPU capability."""
    folder = tmp_path_factory.mktemp("trails")
    (folder / "train.py").write_text(TRAINS)
    variables = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "1", "ATEN_CPU_CAPABILITY": "avx2"}
    other = {"OMP_NUM_THREADS": "2", "PYTHONHASHSEED": "2", "ATEN_CPU_CAPABILITY": "default"}
    for name, chosen in (("usual", variables), ("other", other)):
        command = ["record", "-o", f"{name}.trail", "--", sys.executable, "train.py"]
        answer = proofs.bitproof(*command, cwd=folder, env=os.environ | chosen)
        assert answer.status == 0, answer
    return folder


def test_diff_names_exactly_what_differs(trails: Path) -> None:
    """Of two recordings, diff names the threads, the CPU capability and the hash seed, and nothing else."""
    answer = proofs.bitproof("diff", "--json", "usual.trail", "other.trail", cwd=trails)
    found = {d["key"]: (d["reference"], d["other"]) for d in json.loads(answer.out)["environment"]}
    assert list(found) == [
        "torch.threads",
        "torch.cpu_capability",
        "env.ATEN_CPU_CAPABILITY",
        "env.PYTHONHASHSEED",
        "env.OMP_NUM_THREADS",
    ]
    assert found["torch.threads"] == (1, 2)
    assert found["torch.cpu_capability"][1] == "DEFAULT"
    assert found["env.PYTHONHASHSEED"] == ("1", "2")


def released(trail: Trail, **changes: str) -> Trail:
    """Turn a real trail into one of another release: what a release changes by itself is changed with it."""
    for leg in trail.legs:
        known = leg.meta["environment"]
        assert changes.keys() <= known.keys()
        known |= changes
    return trail


def test_another_release_is_named_alone(trails: Path) -> None:
    """Another version of torch is named once, and not with everything that comes along; the same version's build is."""
    usual = read_trail(trails / "usual.trail")
    along = {"torch.git": "1234", "torch.build": "5678", "torch.onednn_version": "v4", "torch.cuda": "99"}
    other = released(read_trail(trails / "usual.trail"), **{"torch.version": "2.99.0", **along})
    assert compare_trails(usual, other).environment == [Difference("torch.version", torch.__version__, "2.99.0")]
    rebuilt = released(read_trail(trails / "usual.trail"), **along)
    assert [d.key for d in compare_trails(usual, rebuilt).environment] == sorted(along)


def test_every_trail_has_all_of_it(trails: Path) -> None:
    """What can change bits is in each trail: build, BLAS, machine, flags, packages, code."""
    (leg,) = read_trail(trails / "usual.trail").legs
    found = leg.environment
    known = {
        "torch.build",
        "torch.blas",
        "torch.onednn_version",
        "torch.interop_threads",
        "torch.fp32_precision",
        "os.libc",
    }
    known |= {"torch.matmul_precision", "torch.cudnn_benchmark", "torch.fill_uninitialized_memory", "numpy.blas"}
    known |= {"package.numpy", "package.safetensors", "cpu.model", "multiprocessing.start_method", "git.commit"}
    assert known <= found.keys()
    assert all(found[key] is not None for key in known - {"git.commit", "os.libc"})


# --- code ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def repository(tmp_path: Path) -> Iterator[Path]:
    """A repository with a script and a log file, committed."""
    folder = tmp_path / "repository"
    (folder / "deep").mkdir(parents=True)
    (folder / "model.py").write_text("one = 1\n")
    (folder / "deep" / "train.py").write_text("two = 2\n")
    (folder / "metrics.json").write_text("{}\n")
    run(folder, "init", "-q", "-b", "main")
    run(folder, "add", ".")
    run(folder, "-c", "user.name=n", "-c", "user.email=n@example.org", "commit", "-q", "-m", "first")
    git.state.cache_clear()
    yield folder
    git.state.cache_clear()


def run(folder: Path, *words: str) -> str:
    """Run git."""
    done = subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def state(folder: Path) -> tuple[object, object]:
    """Look at a folder as a new process would."""
    git.state.cache_clear()
    found = git.state(str(folder))
    return found["git.commit"], found["git.dirty"]


def test_commit_and_changes(repository: Path) -> None:
    """The commit is told, and a digest of what the sources of the whole repository differ from it in."""
    commit = run(repository, "rev-parse", "HEAD")
    assert state(repository / "deep") == (commit, False)
    (repository / "metrics.json").write_text('{"loss": 1}\n')  # what a run writes is no change of the code
    assert state(repository / "deep") == (commit, False)
    (repository / "model.py").write_text("one = 2\n")
    _, dirty = state(repository / "deep")
    assert isinstance(dirty, str)
    assert state(repository) == (commit, dirty)
    (repository / "model.py").write_text("one = 3\n")
    assert state(repository)[1] not in {dirty, False}
    (repository / "model.py").write_text("one = 2\n")
    run(repository, "add", ".")
    assert state(repository) == (commit, dirty)


def test_without_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repository: Path) -> None:
    """No repository, no git, and a repository that git distrusts all give null, and raise nothing."""
    assert state(tmp_path) == (None, None)
    monkeypatch.setenv("GIT_DIR", str(repository / ".git"))  # a hook's variable speaks of another repository
    assert state(tmp_path) == (None, None)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert state(repository) == (None, None)


def test_git_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repository: Path) -> None:
    """A git that does not answer is given up after a while."""
    slow = tmp_path / "git"
    slow.write_text(f"#!{sys.executable}\nimport time\ntime.sleep(60)\n")
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(git, "_GIT_PATIENCE", 0.2)
    begun = time.monotonic()
    assert state(repository) == (None, None)
    assert time.monotonic() - begun < 10


def test_git_runs_and_writes_nothing(repository: Path) -> None:
    """Programs that a repository names are not run, and its index is not written."""
    harm = repository.parent / "harm"
    program = repository.parent / "program"
    program.write_text(f"#!/bin/sh\ntouch {harm}\n")
    program.chmod(0o755)
    for setting in ("core.fsmonitor", "diff.external", "core.pager", "diff.py.textconv"):
        run(repository, "config", setting, str(program))
    (repository / ".gitattributes").write_text("*.py diff=py\n")
    (repository / "model.py").write_text("one = 2\n")
    os.utime(repository / "deep" / "train.py", (0, 0))  # git would like to note that it is as it was
    before = (repository / ".git" / "index").read_bytes()
    harm.unlink(missing_ok=True)
    dirty = state(repository)[1]
    assert isinstance(dirty, str)
    assert not harm.exists()
    assert (repository / ".git" / "index").read_bytes() == before
    run(repository, "update-index", "-q", "--refresh")
    assert state(repository)[1] == dirty  # a file that was only touched is no change


def test_looked_up_once(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process asks git and lists the packages once, however often it is described."""
    monkeypatch.chdir(repository)
    monkeypatch.setattr(sys.modules["__main__"], "__file__", None, raising=False)
    first = describe()
    assert first["git.commit"] == run(repository, "rev-parse", "HEAD")
    (repository / "model.py").write_text("one = 2\n")
    assert describe() == first


# --- packages and variables ----------------------------------------------------------------------------------------


def test_packages_are_read_from_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each installed package has its version under its normalised name, the first on the path; nothing is opened."""
    for order, names in enumerate(
        (["Some.Pack_age-1.0+cpu.dist-info", "~roken-1.dist-info"], ["some_pack_age-2.dist-info"])
    ):
        folder = tmp_path / str(order) / "site-packages"
        for name in [*names, "old-3.1-py3.11.egg-info", "module", "two-words-1.5.dist-info"]:
            (folder / name).mkdir(parents=True)
    paths = [str(tmp_path / str(order) / "site-packages") for order in (0, 1)]
    monkeypatch.setattr(sys, "path", ["", *paths, str(tmp_path / "missing" / "site-packages")])
    packages.installed.cache_clear()
    try:
        assert packages.installed() == {"old": "3.1", "some-pack-age": "1.0+cpu", "two-words": "1.5"}
    finally:
        monkeypatch.undo()
        packages.installed.cache_clear()
    found = describe()
    assert found["package.pytest"] == pytest.__version__
    assert "package.torch" not in found  # torch.version is more exact
    assert shutil.which("git") is None or "git.commit" in found


def test_gpus_are_read_without_starting_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver's own files tell its version and the models; without it there is none."""
    monkeypatch.setattr(machine, "_NVIDIA", tmp_path)
    for number in range(2):
        folder = tmp_path / "gpus" / f"0000:0{number}:00.0"
        folder.mkdir(parents=True)
        (folder / "information").write_text("Model: \t\t NVIDIA H200\nIRQ:   \t\t 124\n")
    (tmp_path / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan  9 2026\n")
    for look in (machine.gpus, machine.gpu_driver):
        look.cache_clear()
    try:
        assert machine.gpus() == ("NVIDIA H200", "NVIDIA H200")
        assert machine.gpu_driver() == "570.86.15"
        machine.gpus.cache_clear()
        machine.gpu_driver.cache_clear()
        monkeypatch.setattr(machine, "_NVIDIA", tmp_path / "none")
        assert (machine.gpus(), machine.gpu_driver()) == ((), None)
    finally:
        machine.gpus.cache_clear()
        machine.gpu_driver.cache_clear()


def test_variables_of_a_family(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every variable of NCCL and the like is told, but not those that only print or name a place."""
    before = describe()
    for name in ("NCCL_ALGO", "NCCL_P2P_DISABLE", "NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_COMM_ID", "TRITON_CACHE_DIR"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    found = [(d.key, d.other) for d in compare(before, describe())]
    expected = [("env.CUBLAS_WORKSPACE_CONFIG", ":16:8"), ("env.NCCL_ALGO", "1"), ("env.NCCL_P2P_DISABLE", "1")]
    assert found == expected


def test_precision_set_for_one_backend() -> None:
    """Where a script sets the precision of one backend, PyTorch refuses to name a common one; that is said, not raised."""
    before = describe()
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        found = {d.key: d.other for d in compare(before, describe())}
    finally:
        torch.backends.cuda.matmul.fp32_precision = "none"
    assert found == {"torch.matmul_precision": "set by backend", "torch.fp32_precision.cuda.matmul": "tf32"}
    assert describe() == before
