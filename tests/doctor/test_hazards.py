"""Each hazard, planted in a right script: found, at its line, and nothing else beside it."""

import runpy
from pathlib import Path

import pytest

from bitproof.doctor.examine import find
from bitproof.doctor.looked import not_looked_for
from kit.clinic import Clinic, Plant, codes, line_of

SEEDS = "random.seed(0)\nnp.random.seed(0)\ntorch.manual_seed(0)\n"
LOADER = "loader = DataLoader(data, 8, shuffle=True)"
PLANTS = {
    "no seed": Plant(
        "not-seeded",
        ((SEEDS, ""), ("np.random.normal(scale=0.1), self.y[i]", "np.random.normal(scale=0.1), self.y[i]  # HERE")),
    ),
    "one seed of two": Plant(
        "not-seeded",
        (
            ("np.random.seed(0)\n", ""),
            ("np.random.normal(scale=0.1), self.y[i]", "np.random.normal(scale=0.1), self.y[i]  # HERE"),
        ),
    ),
    "no seed, with workers": Plant(
        "not-seeded",
        (
            (SEEDS, ""),
            ("np.random.normal(scale=0.1)", "0"),
            ("nn.Sequential(nn.Linear(6, 8),", "nn.Sequential(\n    nn.Linear(6, 8),  # HERE\n   "),
            (LOADER, LOADER.replace("shuffle=True", "shuffle=True, num_workers=2")),
        ),
    ),
    "files shuffled without a seed": Plant(
        "not-seeded",
        (
            ("random.seed(0)\nnp.random.seed(0)", "np.random.seed(0)"),
            ("data = Noisy()", "order = list(range(9))\nrandom.shuffle(order)  # HERE\ndata = Noisy()"),
        ),
    ),
    "seed after the model": Plant(
        "seeded-after-model",
        (
            (SEEDS, "random.seed(0)\nnp.random.seed(0)\n"),
            ("loader = DataLoader(", "torch.manual_seed(0)  # HERE\nloader = DataLoader("),
        ),
    ),
    "ranks with one seed": Plant(
        "ranks-share-stream",
        (
            ("torch.manual_seed(0)\n", "torch.manual_seed(0)  # HERE\n"),
            ("np.random.normal(scale=0.1)", "0"),
            (
                LOADER,
                (
                    "from torch.utils.data import DistributedSampler\nsampler = DistributedSampler(data, 2, int(os.environ['RANK']))\n"
                    "loader = DataLoader(data, 8, sampler=sampler)"
                ),
            ),
        ),
        ranks=2,
    ),
    "workers with one generator": Plant(
        "workers-share-stream",
        (
            ("        self.epoch = 0\n", "        self.rng = np.random.default_rng(0)  # HERE\n"),
            ("np.random.normal(scale=0.1)", "self.rng.normal(scale=0.1)"),
            (LOADER, "loader = DataLoader(data, 8, shuffle=True, num_workers=2)"),
        ),
    ),
    "numpy's state": Plant(
        "generator-not-saved",
        (
            ('        "numpy": np.random.get_state(),\n', ""),
            ('    torch.save(state, "last.tmp")', '    torch.save(state, "last.tmp")  # HERE'),
        ),
    ),
    "torch's state": Plant(
        "generator-not-saved",
        (
            ('        "torch": torch.get_rng_state(),\n', ""),
            ('    torch.save(state, "last.tmp")', '    torch.save(state, "last.tmp")  # HERE'),
        ),
    ),
    "torch's state, from which only the order is drawn": Plant(
        "generator-not-saved",
        (
            ("nn.Dropout(0.2)", "nn.Dropout(0.0)"),
            ('        "torch": torch.get_rng_state(),\n', ""),
            ('    torch.save(state, "last.tmp")', '    torch.save(state, "last.tmp")  # HERE'),
        ),
    ),
    "torch's state, from which only a sampler of the script's own draws": Plant(
        "generator-not-saved",
        (
            ("nn.Dropout(0.2)", "nn.Dropout(0.0)"),
            (
                LOADER,
                (
                    "class Shuffled:\n    def __len__(self):\n        return 32\n    def __iter__(self):\n"
                    "        return iter(torch.randperm(32).tolist())\n\n\nloader = DataLoader(data, 8, sampler=Shuffled())"
                ),
            ),
            ('        "torch": torch.get_rng_state(),\n', ""),
            ('    torch.save(state, "last.tmp")', '    torch.save(state, "last.tmp")  # HERE'),
        ),
    ),
    "torch's state, from which workers are seeded": Plant(
        "generator-not-saved",
        (
            ("nn.Dropout(0.2)", "nn.Dropout(0.0)"),
            (LOADER, "loader = DataLoader(data, 8, num_workers=2)"),
            ('        "torch": torch.get_rng_state(),\n', ""),
            ('    torch.save(state, "last.tmp")', '    torch.save(state, "last.tmp")  # HERE'),
        ),
    ),
    "a generator for the shuffle": Plant(
        "generator-not-saved",
        (
            (
                LOADER,
                "g = torch.Generator().manual_seed(5)  # HERE\nloader = DataLoader(data, 8, shuffle=True, generator=g)",
            ),
        ),
    ),
    "a generator in the data set": Plant(
        "generator-not-saved",
        (
            ("        self.epoch = 0\n", "        self.rng = np.random.default_rng(0)  # HERE\n"),
            ("np.random.normal(scale=0.1)", "self.rng.normal(scale=0.1)"),
        ),
    ),
    "python's own kind of generator in the sampler": Plant(
        "generator-not-saved",
        (
            (
                LOADER,
                (
                    "class Shuffled:\n    rng = None\n    def __init__(self):\n        self.rng = random.Random(3)  # HERE\n"
                    "    def __len__(self):\n        return 32\n    def __iter__(self):\n        order = list(range(32))\n"
                    "        self.rng.shuffle(order)\n        return iter(order)\n\n\nloader = DataLoader(data, 8, sampler=Shuffled())"
                ),
            ),
        ),
    ),
    "a generator in a layer": Plant(
        "generator-not-saved",
        (
            (
                "data = Noisy()",
                (
                    "class Drop(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
                    "        self.g = torch.Generator().manual_seed(1)  # HERE\n\n    def forward(self, x):\n"
                    "        return x * (torch.rand(x.shape, generator=self.g) > 0.1)\n\n\ndata = Noisy()"
                ),
            ),
            ("nn.Dropout(0.2)", "Drop()"),
        ),
    ),
    "a generator of the script's": Plant(
        "generator-not-saved",
        (
            ("data = Noisy()", "g = torch.Generator().manual_seed(1)  # HERE\ndata = Noisy()"),
            ("forward(inputs.float())", "forward(inputs.float() + torch.rand(6, generator=g))"),
        ),
    ),
    "a shuffled validation": Plant(
        "validation-draws",
        (
            ("held_out = DataLoader(TensorDataset(data.x, data.y), 8)", "held_out = DataLoader(data, 8, shuffle=True)"),
            ("        for inputs, _ in held_out:", "        for inputs, _ in held_out:  # HERE"),
            ("            model(inputs)\n", "            model(inputs.float())\n"),
        ),
    ),
    "a shuffled validation with workers": Plant(
        "validation-draws",
        (
            (
                "held_out = DataLoader(TensorDataset(data.x, data.y), 8)",
                "held_out = DataLoader(TensorDataset(data.x, data.y), 8, shuffle=True, num_workers=1)",
            ),
            ("        for inputs, _ in held_out:", "        for inputs, _ in held_out:  # HERE"),
        ),
    ),
    "noise in validation": Plant(
        "validation-draws",
        (("            model(inputs)\n", "            model(inputs + torch.randn(6))  # HERE\n"),),
    ),
    "a validation without a loader": Plant(
        "validation-draws",
        (
            (
                "        for inputs, _ in held_out:\n            model(inputs)\n",
                "        model(data.x)\n        model(data.x + torch.randn(6))  # HERE\n",
            ),
        ),
    ),
    "recomputed without its generator": Plant(
        "recompute-without-rng",
        (
            (
                "    return model(inputs)",
                "    return torch.utils.checkpoint.checkpoint(model, inputs, use_reentrant=False, preserve_rng_state=False)  # HERE",
            ),
        ),
    ),
    "a recomputed mask from numpy": Plant(
        "recompute-without-rng",
        (
            (
                "    return model(inputs)",
                (
                    "    def masked(z):\n        return model(z) * float(np.random.rand() > 0.1)\n"
                    "    return torch.utils.checkpoint.checkpoint(masked, inputs, use_reentrant=False)  # HERE"
                ),
            ),
        ),
    ),
    "deterministic after some steps": Plant(
        "deterministic-set-late",
        (
            (
                "        if done % 3 == 0:",
                "        if done == 2:\n            torch.use_deterministic_algorithms(True)  # HERE\n        if done % 3 == 0:",
            ),
        ),
    ),
    "deterministic, but warnings only": Plant(
        "deterministic-half",
        (
            (
                SEEDS,
                SEEDS
                + "import warnings\nwarnings.simplefilter('always')\ntorch.use_deterministic_algorithms(True, warn_only=True)\n",
            ),
            (
                "    return model(inputs)",
                "    inputs = inputs.clone().put_(torch.tensor([1, 1]), torch.ones(2))  # HERE\n    return model(inputs)",
            ),
        ),
    ),
    "an epoch that workers do not hear of": Plant(
        "persistent-workers-epoch",
        (
            (LOADER, "loader = DataLoader(data, 8, shuffle=True, num_workers=1, persistent_workers=True)"),
            ("    data.shown = epoch\n", "    data.epoch = epoch\n"),
            ("    for inputs, labels in loader:", "    for inputs, labels in loader:  # HERE"),
        ),
    ),
    "a list of a set": Plant(
        "order-from-set",
        (
            (
                'words = sorted(set("the cat sat on the mat".split()))',
                'words = list(set("the cat sat on the mat".split()))  # HERE',
            ),
        ),
    ),
    "a loop over a set of names": Plant(
        "order-from-set",
        (
            (
                'words = sorted(set("the cat sat on the mat".split()))',
                'words = []\nfor word in {"cat", "mat"}:  # HERE\n    words.append(word)',
            ),
        ),
    ),
    "characters numbered": Plant(
        "order-from-set",
        (
            (
                'words = sorted(set("the cat sat on the mat".split()))',
                'text = "the cat sat"\nletters = set(text)\nnumber = {c: i for i, c in enumerate(letters)}  # HERE',
            ),
        ),
    ),
    "one file, in place": Plant(
        "checkpoint-in-place",
        (
            (
                '    torch.save(state, "last.tmp")\n    os.replace("last.tmp", "last.pt")',
                '    torch.save(state, "last.pt")  # HERE',
            ),
        ),
    ),
    "one open file, in place": Plant(
        "checkpoint-in-place",
        (
            (
                '    torch.save(state, "last.tmp")\n    os.replace("last.tmp", "last.pt")',
                '    with open("last.pt", "wb") as file:\n        torch.save(state, file)  # HERE',
            ),
        ),
    ),
    "half precision": Plant(
        "checkpoint-half-precision",
        (
            ('"model": model.state_dict(),', '"model": {k: v.half() for k, v in model.state_dict().items()},'),
            ('    torch.save(state, "last.tmp")', '    torch.save(state, "last.tmp")  # HERE'),
        ),
    ),
    "no scheduler": Plant(
        "scheduler-not-saved",
        (
            ('        "scheduler": scheduler.state_dict(),\n', ""),
            ("StepLR(optimizer, 5)", "StepLR(optimizer, 5)  # HERE"),
        ),
    ),
    "no scaler": Plant(
        "scaler-not-saved",
        (
            ('        "scaler": scaler.state_dict(),\n', ""),
            ('GradScaler("cpu", init_scale=16.0)', 'GradScaler("cpu", init_scale=16.0)  # HERE'),
        ),
    ),
}


@pytest.mark.parametrize("name", PLANTS)
def test_planted(clinic: Clinic, name: str) -> None:
    """A hazard is found at its line, and no other one is."""
    plant = PLANTS[name]
    found = clinic.examine(plant.script, ranks=plant.ranks)
    assert codes(found) == [plant.code]
    assert found[0].where == line_of(plant.script)


@pytest.mark.parametrize(
    "path", ["train.py", "../there/train.py", "../../up/there/train.py", "../link/train.py", "../there/linked.py"]
)
def test_paths_to_the_script(clinic: Clinic, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script is read whatever path leads to it, and its lines are named by that path."""
    script = PLANTS["a list of a set"].script
    there = clinic.folder / "up" / "there"
    there.mkdir(parents=True)
    (there / "train.py").write_text(script)
    (there / "linked.py").symlink_to(there / "train.py")
    (clinic.folder / "up" / "link").symlink_to(there)
    here = there if path == "train.py" else clinic.folder / "up" / "here"
    here.mkdir(exist_ok=True)
    monkeypatch.chdir(here)
    evidence = clinic.watch(lambda: runpy.run_path(f"{Path.cwd()}/{path}", run_name="__main__"))
    (hazard,) = find(evidence)
    assert (hazard.code, hazard.where) == ("order-from-set", f"{path}:{line_of(script).partition(':')[2]}")


def test_a_later_epoch_that_is_not_seen(clinic: Clinic) -> None:
    """Where the order was drawn once only, it is said that no second epoch began."""
    script = PLANTS["torch's state, from which only the order is drawn"].script.replace("range(3)", "range(1)")
    evidence = clinic.watch(clinic.running(script))
    assert find(evidence) == []
    assert ("generator-not-saved", "no second epoch began in 4 steps") in list(not_looked_for(evidence))
