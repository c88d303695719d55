"""Rules that need what a test machine lacks, tried on evidence that is put together by hand; and the scan of files."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from bitproof.doctor.evidence import Evidence
from bitproof.doctor.examine import find
from bitproof.doctor.looked import not_looked_for
from bitproof.doctor.notes import Note, NoteKind
from bitproof.doctor.sources import Source
from kit.built import leg, state
from kit.clinic import codes

START = {
    "generators": {},
    "seeded": True,
    "cuda": True,
    "parallel": False,
    "built": None,
    "deterministic": True,
    "warn_only": False,
    "cudnn_deterministic": False,
    "cudnn_benchmark": False,
}
RNN = {"class": "LSTM", "layers": 2, "dropout": 0.5, "device": "cuda", "training": True}


def evidence(*notes: tuple[NoteKind, dict[str, object]], source: str = "", **start: object) -> Evidence:
    """Return evidence of two steps on a CUDA device."""
    begun = Note("start", 1, 0, None, {**START, **start})
    made = [Note(kind, 0, 0, "train.py:7", data) for kind, data in notes]
    return Evidence({}, (leg([state(0), state(1)]),), (begun, *made), (Source(Path("train.py"), source),))


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (evidence(("rnn", RNN)), ["cudnn-rnn-dropout"]),
        (evidence(("rnn", {**RNN, "device": "cpu"})), []),
        (evidence(("rnn", {**RNN, "layers": 1})), []),
        (evidence(("rnn", {**RNN, "dropout": 0.0})), []),
        (evidence(("rnn", {**RNN, "training": False})), []),
        (
            evidence(("variable", {"name": "CUBLAS_WORKSPACE_CONFIG", "value": ":4096:8", "cuda": True})),
            ["cublas-variable-late"],
        ),
        (evidence(("variable", {"name": "CUBLAS_WORKSPACE_CONFIG", "value": ":4096:8", "cuda": False})), []),
    ],
)
def test_notes_of_a_device(found: Evidence, expected: Sequence[str]) -> None:
    """What is a hazard on a CUDA device only is found there, at its line, and nowhere else."""
    hazards = find(found)
    assert codes(hazards) == expected
    assert all(hazard.where == "train.py:7" for hazard in hazards)


def test_half_of_determinism_on_a_device() -> None:
    """CuDNN's flags alone, and benchmarking beside deterministic algorithms, are half; at the line that sets them."""
    alone = "import torch\ntorch.backends.cudnn.deterministic = True\n"
    (hazard,) = find(evidence(source=alone, deterministic=False, cudnn_deterministic=True))
    assert (hazard.code, hazard.where) == ("deterministic-half", "train.py:2")
    beside = "import torch\n\n\ntorch.backends.cudnn.benchmark = True\n"
    (hazard,) = find(evidence(source=beside, cudnn_benchmark=True))
    assert (hazard.code, hazard.where) == ("deterministic-half", "train.py:4")
    assert find(evidence(source=alone, deterministic=False, cudnn_deterministic=True, cuda=False)) == []
    assert find(evidence()) == []


def test_half_of_determinism_without_a_device() -> None:
    """Without CUDA the flags of cuDNN are not looked for, and that is said; warn_only is looked for anywhere."""

    def missing(**start: object) -> set[str]:
        return {code for code, _ in not_looked_for(evidence(**start))}

    assert "deterministic-half" in missing(cuda=False, deterministic=False, cudnn_deterministic=True)
    assert "deterministic-half" not in missing(cuda=False, warn_only=True)
    assert "deterministic-half" not in missing()


@pytest.mark.parametrize(
    "code",
    [
        "names = list({'a', 'b'})",
        "names = tuple({x.name for x in things})",
        "text = open('f').read()\nfor i, c in enumerate(set(text)):\n    print(i, c)",
        "lines = [l for l in set(open('f').readlines())]",
        "import os\nfiles = [f for f in set(os.listdir('.'))]",
        "from pathlib import Path\nfiles = list(set(Path('.').glob('*')))",
        "key = ','.join({'a', 'b'})",
        "print(train(list({'a', 'b'})))",
        "names = list({'a', 'b'})\nassert names\nfirst = names[0]",
        "both = {'a'} | {'b'}\nnames = [*both]",
        "def words():\n    for word in frozenset('a b'.split()):\n        yield word",
        "number = {f'{i}': i for i in set(str(x) for x in range(3))}\nindex = {c: 0 for c in {'a', 'b'}}",
        "import random\nchosen = random.sample(list({'a', 'b'}), 1)",
    ],
)
def test_orders_that_come_from_sets(code: str) -> None:
    """A set of strings whose order goes on is found."""
    assert codes(find(evidence(source=code)))[:1] == ["order-from-set"]


@pytest.mark.parametrize(
    "code",
    [
        "names = sorted({'a', 'b'})",
        "names = sorted(list({'a', 'b'}), key=len)",
        "names = sorted(x.lower() for x in {'a', 'b'})",
        "count = len(list(set('abc')))",
        "numbers = list(set(range(3)))",
        "numbers = list({1, 2})",
        "unknown = list(set(things))",
        "same = set(list({'a', 'b'}))",
        "for name in {'a', 'b'}:\n    print(name)",
        "is_there = any(x == 'a' for x in {'a', 'b'})",
        "names = list({'a', 'b'})\nnames.sort()",
        "names = list({'a', 'b'})\nnames = sorted(names)",
        "only = list({'a'})",
        "print('one of', ', '.join({'a', 'b'}))",
        "known = {'a', 'b'}\nif x not in known:\n    raise ValueError(f\"choose from {', '.join(known)}\")",
        "p.add_argument('--x', choices=list({'a', 'b'}))",
        "missing = [k for k in {'a', 'b'} - set(config)]\nassert not missing, f'missing: {missing}'",
        "lower = {x.lower() for x in {'a', 'b'}}",
        "def broken(:\n",
    ],
)
def test_sets_without_an_order(code: str) -> None:
    """A set whose order is not used, or is the same in every process, is none; nor is a file that cannot be read."""
    assert find(evidence(source=code)) == []


def test_a_fixed_hash_seed() -> None:
    """With PYTHONHASHSEED fixed, the order of a set is the same in every process; ``random`` does not fix it."""
    found = evidence(source="names = list({'a', 'b'})")
    for value, expected in (("0", []), ("7", []), ("random", ["order-from-set"]), (None, ["order-from-set"])):
        fixed = Evidence({"env.PYTHONHASHSEED": value}, found.legs, found.notes, found.sources)
        assert codes(find(fixed)) == expected


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("for _ in range(done):\n    warmup.step()", True),
        ("s.step(epoch + i / iters)", True),
        ("s = LambdaLR(o, lambda k: 1 / (done + k))", True),
        ("s = LambdaLR(o, lr_lambda=lambda epoch: 0.9**epoch)", False),
        ("for _ in range(3):\n    optimizer.step()", False),
        ("plateau.step(loss, epoch)", False),
    ],
)
def test_schedules_that_are_brought_to_their_place(code: str, expected: bool) -> None:
    """A script that steps its schedule again, or gives it the count, is told from one that only counts on."""
    assert Source(Path("train.py"), code).rebuilds_schedule is expected


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("for i, batch in enumerate(loader):\n    if i < first:\n        continue\n    train(batch)", True),
        ("for batch in loader:\n    step += 1\n    if step <= done:\n        continue\n    train(batch)", True),
        ("for batch in islice(loader, done, None):\n    train(batch)", True),
        ("for epoch in range(9):\n    if epoch < start:\n        continue\n    train()", False),
        ("for i, line in enumerate(file):\n    if i < 1:\n        continue\n    rows.append(line)", False),
        ("for line in file:\n    if len(line) < least:\n        continue\n    rows.append(line)", False),
    ],
)
def test_batches_that_are_fetched_again(code: str, expected: bool) -> None:
    """A script that passes over the batches before its place is told from one that leaves out epochs or lines."""
    assert Source(Path("train.py"), code).skips_batches is expected
