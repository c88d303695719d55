"""Right scripts have no hazard: none is invented."""

import dataclasses
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from bitproof.doctor import sources
from bitproof.doctor.examine import find
from kit.clinic import RIGHT, Clinic, Plant
from kit.live import Job

ROOT = Path(__file__).parents[2]
PLACE = ROOT / "tests" / "causes" / "test_right_scripts.py"


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("right_scripts", PLACE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_ALIKE = frozenset({
    "Momentum", "Adam", "Fused", "Foreach", "RMSprop", "Adagrad", "OneCycle", "WarmRestarts", "SquaredError", "OffsetByOne",
    "AccumulatedPlain", "ScaledFused", "Tied", "SelfResuming", "TorchOnly", "ShortLastBatch", "ValidatingWithGradients",
})  # fmt: skip
"""To the doctor they look like others of the family."""
FAMILY = [
    pytest.param(loop, id=loop.__name__, marks=[pytest.mark.slow] if loop.__name__ in _ALIKE else [])
    for loop, _ in _load().FAMILY
]
FILES = [str(PLACE), str(ROOT / "tests" / "kit" / "loop.py")]
LOADER = "loader = DataLoader(data, 8, shuffle=True)"
LOOP = "    for inputs, labels in loader:\n"
FORWARD = "    return model(inputs)\n"
WORDS = 'words = sorted(set("the cat sat on the mat".split()))'
SAVE = '    torch.save(state, "last.tmp")\n    os.replace("last.tmp", "last.pt")\n'
VALIDATE = "        for inputs, _ in held_out:\n            model(inputs)\n"
HELD_OUT = "held_out = DataLoader(TensorDataset(data.x, data.y), 8)"
GENERATOR = "g = torch.Generator().manual_seed(5)\nloader = DataLoader(data, 8, shuffle=True, generator=g)"
OWN = ("        self.epoch = 0\n", "        self.rng = np.random.default_rng(0)\n")
DRAW = ("np.random.normal(scale=0.1)", "self.rng.normal(scale=0.1)")
SAMPLER = """class Shuffled:
    def __init__(self):
        self.rng = random.Random(3)
    def __len__(self):
        return 32
    def __iter__(self):
        order = list(range(32))
        self.rng.shuffle(order)
        return iter(order)


loader = DataLoader(data, 8, sampler=Shuffled())"""
STATE = '        "done": done,\n'
STATES = '        "torch": torch.get_rng_state(),\n        "python": random.getstate(),\n        "numpy": np.random.get_state(),\n'
UNSAVED = (("nn.Dropout(0.2)", "nn.Dropout(0.0)"), ('        "torch": torch.get_rng_state(),\n', ""))
IN_ORDER = (LOADER, "loader = DataLoader(data, 8)")
NOISE = "        return self.x[i] + np.random.normal(scale=0.1), self.y[i]\n"
OF_SCRIPT = ("data = Noisy()", "own = np.random.default_rng(3)\ndata = Noisy()")
VARIANTS = {
    "all generators seeded anew in each epoch": (
        (STATES, ""),
        (LOOP, "    random.seed(epoch)\n    np.random.seed(epoch)\n    torch.manual_seed(epoch)\n" + LOOP),
    ),
    "a loader in order, for whose seed alone torch's generator is drawn from": (*UNSAVED, IN_ORDER),
    "workers in order that draw nothing": (
        *UNSAVED,
        (LOADER, "loader = DataLoader(data, 8, num_workers=2)"),
        ("np.random.normal(scale=0.1)", "0"),
    ),
    "workers in order that seed each sample": (
        *UNSAVED,
        (LOADER, "loader = DataLoader(data, 8, num_workers=2)"),
        (NOISE, "        np.random.seed(i)\n" + NOISE),
    ),
    "a shuffle that is seeded in each epoch": (UNSAVED[0], UNSAVED[1], (LOOP, "    torch.manual_seed(epoch)\n" + LOOP)),
    "a shuffled validation with gradients beside training in order": (
        *UNSAVED,
        IN_ORDER,
        (HELD_OUT, HELD_OUT.replace("8)", "8, shuffle=True)")),
        ("    with torch.no_grad():\n        for inputs", "    if True:\n        for inputs"),
    ),
    "batches that are fetched again": (
        UNSAVED[0],
        (STATES, ""),
        (LOOP, "    for i, (inputs, labels) in enumerate(loader):\n        if i < done - 99:\n            continue\n"),
    ),
    "a generator that is drawn from again": (
        OF_SCRIPT,
        ("done = 0\n", "done = 0\nfor _ in range(done):\n    own.normal(size=6)\n"),
        (FORWARD, "    return model(inputs + torch.from_numpy(own.normal(size=6)).float())\n"),
    ),
    "a generator that is saved as JSON": (
        OWN,
        DRAW,
        (STATE, STATE + '        "g": __import__("json").dumps(data.rng.bit_generator.state),\n'),
    ),
    "states in a file of the script's own": (
        (STATES, ""),
        ('        "scheduler": scheduler.state_dict(),\n', ""),
        (
            SAVE,
            SAVE
            + "    import pickle\n    states = [scheduler.state_dict(), torch.get_rng_state(), random.getstate(), np.random.get_state()]\n"
            '    open("rest.pkl", "wb").write(pickle.dumps(states))\n',
        ),
    ),
    "no seed where nothing depends on one": (
        ("torch.manual_seed(0)\n", ""),
        IN_ORDER,
        ("nn.Dropout(0.2)", "nn.Dropout(0.0)"),
        ("torch.randn(32, 6), torch.randint(3, (32,))", "torch.ones(32, 6), torch.ones(32).long()"),
        (
            "model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.0), nn.Linear(8, 3))",
            "model = nn.Linear(6, 3, device='meta').to_empty(device='cpu')\nnn.init.ones_(model.weight)\nnn.init.zeros_(model.bias)",
        ),
    ),
    "a shuffled validation before a new seed": (
        (HELD_OUT, "held_out = DataLoader(data, 8, shuffle=True)"),
        (VALIDATE, VALIDATE.replace("model(inputs)", "model(inputs.float())")),
        (LOOP, "    torch.manual_seed(epoch)\n" + LOOP),
    ),
    "a copy is kept of the one before": (
        (
            SAVE,
            (
                '    import shutil\n    if os.path.exists("last.pt"):\n        shutil.copy2("last.pt", "before.pt")\n'
                '    torch.save(state, "last.pt")\n'
            ),
        ),
    ),
    "each one is copied": (
        (SAVE, '    import shutil\n    torch.save(state, "new.pt")\n    shutil.copy("new.pt", f"step-{done}.pt")\n'),
    ),
    "a generator that is not drawn from": (('        "python": random.getstate(),\n', ""),),
    "generators that are saved elsewhere than the model": (
        (STATES, ""),
        (
            SAVE,
            SAVE + '    torch.save([torch.get_rng_state(), np.random.get_state()[1].tolist()], "rng.pt")\n',
        ),
    ),
    "a generator seeded anew in each epoch": ((LOADER, GENERATOR), (LOOP, "    g.manual_seed(epoch)\n" + LOOP)),
    "a generator seeded alike in each epoch": ((LOADER, GENERATOR), (LOOP, "    g.manual_seed(0)\n" + LOOP)),
    "a generator made anew in each epoch": (
        (LOADER, "sampler = RandomSampler(data)\nloader = DataLoader(data, 8, sampler=sampler)"),
        (LOOP, "    sampler.generator = torch.Generator().manual_seed(epoch)\n" + LOOP),
    ),
    "a generator that is saved": ((LOADER, GENERATOR), (STATE, STATE + '        "g": g.get_state(),\n')),
    "numpy's generator that is saved": (OWN, DRAW, (STATE, STATE + '        "g": data.rng.bit_generator.state,\n')),
    "python's generator that is saved": (
        (LOADER, SAMPLER),
        (STATE, STATE + '        "g": loader.sampler.rng.getstate(),\n'),
    ),
    "python's generator that is saved as lists": (
        (LOADER, SAMPLER),
        (STATE, STATE + '        "g": list(loader.sampler.rng.getstate()[1]),\n'),
    ),
    "a generator that is pickled whole": (
        OWN,
        DRAW,
        (STATE, STATE + '        "g": data.rng,\n'),
    ),
    "a generator that splits the data": (
        (
            LOADER,
            "g = torch.Generator().manual_seed(5)\nkept, _ = torch.utils.data.random_split(data, [24, 8], generator=g)\n"
            + LOADER,
        ),
    ),
    "a generator of the script's that only the loader's seed is drawn from": (
        (LOADER, "g = torch.Generator()\nloader = DataLoader(data, 8, generator=g)"),
    ),
    "a file that is moved": (
        (SAVE, '    import shutil\n    torch.save(state, "last.tmp")\n    shutil.move("last.tmp", "last.pt")\n'),
    ),
    "a generator that only the loader's seed is drawn from": (
        (LOADER, "loader = DataLoader(data, 8, generator=torch.Generator())"),
    ),
    "workers that draw from the global generators": (
        (LOADER, "loader = DataLoader(data, 8, shuffle=True, num_workers=2)"),
    ),
    "an endless stream, with workers": (
        (
            LOADER,
            (
                "class Stream(torch.utils.data.IterableDataset):\n    def __iter__(self):\n"
                "        g = torch.Generator().manual_seed(torch.utils.data.get_worker_info().id)\n"
                "        while True:\n            yield torch.randn(6, generator=g), torch.tensor(1)\n\n\n"
                "from itertools import islice\nloader = list(islice(DataLoader(Stream(), 8, num_workers=2), 4))"
            ),
        ),
    ),
    "a data set that answers to every name": (
        (
            "class Noisy(Dataset):\n",
            (
                "class Noisy(Dataset):\n    def __getattr__(self, name):\n        raise RuntimeError(name)\n\n"
                "    def __bool__(self):\n        raise RuntimeError\n\n    def __eq__(self, other):\n        raise RuntimeError\n\n"
                "    def __hash__(self):\n        raise RuntimeError\n\n"
            ),
        ),
        ("data = Noisy()", "data = Noisy.__new__(Noisy)\nNoisy.__init__(data)"),
        (
            LOADER,
            (
                "class Order:\n    def __init__(self, data):\n        self.data = data\n    def __iter__(self):\n"
                "        return iter(range(32))\n    def __len__(self):\n        return 32\n\n\n"
                "loader = DataLoader.__new__(DataLoader)\nDataset.__getitems__ = None\n"
                "DataLoader.__init__(loader, data, 8, sampler=Order(data))"
            ),
        ),
    ),
    "workers whose generators are made in them": (
        OWN,
        DRAW,
        (
            LOADER,
            (
                "def init(_):\n    info = torch.utils.data.get_worker_info()\n    info.dataset.rng = np.random.default_rng(info.seed)\n\n\n"
                "loader = DataLoader(data, 8, shuffle=True, num_workers=2, worker_init_fn=init)"
            ),
        ),
    ),
    "persistent workers and an epoch in shared memory": (
        ("        self.epoch = 0\n", "        self.epoch = torch.tensor(0).share_memory_()\n"),
        (LOADER, "loader = DataLoader(data, 8, shuffle=True, num_workers=1, persistent_workers=True)"),
        ("    data.shown = epoch\n", "    data.epoch.fill_(epoch)\n"),
    ),
    "workers started anew in each epoch": (
        (LOADER, "loader = DataLoader(data, 8, shuffle=True, num_workers=1)"),
        ("    data.shown = epoch\n", "    data.epoch = epoch\n"),
    ),
    "two files in turn": ((SAVE, '    torch.save(state, f"last-{done % 2}.pt")\n'),),
    "a file a checkpoint": ((SAVE, '    torch.save(state, f"checkpoint-{done}.pt")\n'),),
    "a folder that is renamed": (
        (
            SAVE,
            (
                '    os.makedirs("new", exist_ok=True)\n    torch.save(state, "new/last.pt")\n'
                '    os.rename("new", f"checkpoint-{done}")\n'
            ),
        ),
    ),
    "the one before is kept": (
        (
            SAVE,
            '    if os.path.exists("last.pt"):\n        os.replace("last.pt", "before.pt")\n    torch.save(state, "last.pt")\n',
        ),
    ),
    "a schedule that is rebuilt": (
        ('        "scheduler": scheduler.state_dict(),\n', ""),
        ("StepLR(optimizer, 5)", "StepLR(optimizer, 5, last_epoch=-1)"),
    ),
    "a schedule that is stepped again": (
        ('        "scheduler": scheduler.state_dict(),\n', ""),
        ("done = 0\n", "done = 0\nfor _ in range(done):\n    scheduler.step()\n"),
    ),
    "a scheduler that is pickled whole": (('"scheduler": scheduler.state_dict()', '"scheduler": scheduler'),),
    "a scaler that is off": (
        ('        "scaler": scaler.state_dict(),\n', ""),
        ("init_scale=16.0)", "init_scale=16.0, enabled=False)"),
    ),
    "half a copy beside the whole": (
        (SAVE, SAVE + '    torch.save({k: v.half() for k, v in model.state_dict().items()}, "export.pt")\n'),
    ),
    "only an export": (
        ("        if done % 3 == 0:\n            save(done)\n", ""),
        ("    validate()\n", "    validate()\ntorch.save(model.half().state_dict(), 'model.pt')\n"),
    ),
    "validation in a fork of the generator": (
        (HELD_OUT, "held_out = DataLoader(data, 8, shuffle=True)"),
        (
            VALIDATE,
            "        with torch.random.fork_rng():\n            for inputs, _ in held_out:\n                model(inputs.float())\n",
        ),
    ),
    "validation with a generator of its own": (
        (HELD_OUT, "held_out = DataLoader(data, 8, shuffle=True, generator=torch.Generator())"),
        (VALIDATE, VALIDATE.replace("model(inputs)", "model(inputs.float())")),
    ),
    "a teacher in each step": (
        (
            FORWARD,
            "    model.eval()\n    with torch.no_grad():\n        model(inputs)\n        model(inputs + torch.randn(6))\n"
            "    model.train()\n" + FORWARD,
        ),
    ),
    "a rollout": (
        (
            FORWARD,
            "    with torch.no_grad():\n        for _ in range(2):\n            torch.multinomial(model(inputs).softmax(1), 1)\n"
            + FORWARD,
        ),
    ),
    "a rollout that training goes on with": (
        (
            LOOP,
            (
                "    model.eval()\n    with torch.no_grad():\n        states = [torch.randn(8, 6)]\n        for _ in range(3):\n"
                "            model(states[-1])\n            states.append(states[-1] + torch.randn(6))\n    model.train()\n"
                "    for inputs in states[:-1]:\n        labels = torch.zeros(8).long()\n"
            ),
        ),
    ),
    "recomputed with its generator": (
        (FORWARD, "    return torch.utils.checkpoint.checkpoint(model, inputs, use_reentrant=False)\n"),
    ),
    "recomputed without one and without draws": (
        ("nn.Dropout(0.2)", "nn.Dropout(0.0)"),
        (
            FORWARD,
            "    return torch.utils.checkpoint.checkpoint(model, inputs, use_reentrant=False, preserve_rng_state=False)\n",
        ),
    ),
    "deterministic from the start": (
        ("np.random.seed(0)\n", "np.random.seed(0)\ntorch.use_deterministic_algorithms(True)\n"),
    ),
    "weights that are loaded, then a seed": (
        ("torch.manual_seed(0)\n", ""),
        (
            LOADER,
            "model.load_state_dict({k: torch.ones_like(v) for k, v in model.state_dict().items()})\ntorch.manual_seed(0)\n"
            + LOADER,
        ),
    ),
    "sets without an order": (
        (
            WORDS,
            (
                'seen = {"cat", "mat"}\nwords = sorted(w for w in seen)\ncount = len(list(seen))\nones = list({1, 2})\n'
                'known = "cat" in list(seen)\nfor word in seen:\n    assert word\nnames = list(seen)\nnames.sort()'
            ),
        ),
    ),
    "a dictionary in place of a set": ((WORDS, 'words = list(dict.fromkeys("the cat sat".split()))'),),
}
RANKS = {
    "ranks with a seed each": (
        (
            "loader = DataLoader(data, 8, shuffle=True)",
            (
                "torch.manual_seed(100 + int(os.environ['RANK']))\nnp.random.seed(100 + int(os.environ['RANK']))\n"
                "loader = DataLoader(data, 8, shuffle=True)"
            ),
        ),
    ),
    "ranks with one seed and no draws": (
        ("nn.Dropout(0.2)", "nn.Dropout(0.0)"),
        ("np.random.normal(scale=0.1)", "0"),
        (
            LOADER,
            (
                "from torch.utils.data import DistributedSampler\nsampler = DistributedSampler(data, 2, int(os.environ['RANK']))\n"
                "loader = DataLoader(data, 8, sampler=sampler)"
            ),
        ),
    ),
    "ranks that share a batch on purpose": (),
}


@pytest.mark.parametrize("loop", FAMILY)
def test_right_scripts(clinic: Clinic, loop: type) -> None:
    """A script that resumes rightly has no hazard, whatever it is made of."""
    out = clinic.folder / "out"
    out.mkdir()
    evidence = clinic.watch(lambda: loop.train(Job(out, resume=False)))  # type: ignore[attr-defined]
    assert find(dataclasses.replace(evidence, sources=sources.read(FILES))) == []


def test_the_right_script(clinic: Clinic) -> None:
    """The script that the hazards are planted in has none."""
    assert clinic.examine(RIGHT) == []


@pytest.mark.parametrize("name", VARIANTS)
def test_variants(clinic: Clinic, name: str) -> None:
    """A script that does on purpose what looks like a hazard has none."""
    assert clinic.examine(Plant("", VARIANTS[name]).script) == []


@pytest.mark.parametrize("name", RANKS)
def test_ranks(clinic: Clinic, name: str) -> None:
    """Two ranks that draw other numbers, none, or the same on purpose are right."""
    assert clinic.examine(Plant("", RANKS[name]).script, ranks=2) == []
