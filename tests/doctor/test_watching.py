"""Watching changes nothing: the same bits with and without, and nothing is left in the process's way."""

import pytest

from kit.clinic import RIGHT, Clinic, Plant
from kit.live import _in_child

SHOW = """
import hashlib
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters()))
digest.update(torch.get_rng_state().numpy().tobytes())
digest.update(repr((random.getstate(), np.random.get_state()[1].tolist(), np.random.get_state()[2:])).encode())
open("digest", "w").write(digest.hexdigest())
"""
SCRIPTS = {
    "plain": RIGHT,
    "workers, a shuffled validation and recomputation": Plant(
        "",
        (
            ("loader = DataLoader(data, 8, shuffle=True)", "loader = DataLoader(data, 8, shuffle=True, num_workers=2)"),
            ("TensorDataset(data.x, data.y), 8)", "TensorDataset(data.x, data.y), 8, shuffle=True)"),
            (
                "    return model(inputs)",
                "    return torch.utils.checkpoint.checkpoint(model, inputs, use_reentrant=False)",
            ),
        ),
    ).script,
    "a generator and an RNN": Plant(
        "",
        (
            (
                "loader = DataLoader(data, 8, shuffle=True)",
                (
                    "g = torch.Generator().manual_seed(5)\nloader = DataLoader(data, 8, shuffle=True, generator=g)\n"
                    "rnn = nn.GRU(6, 6, num_layers=2, dropout=0.5)\nos.environ['CUBLAS_WORKSPACE_CONFIG'] = ':4096:8'"
                ),
            ),
            ("    return model(inputs)", "    return model(rnn(inputs)[0])"),
        ),
    ).script,
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_bits_stay(clinic: Clinic, name: str) -> None:
    """A run that is watched ends with the same weights and generators as one that is not."""
    script = SCRIPTS[name] + SHOW
    clinic.examine(script)
    watched = (clinic.folder / "digest").read_text()
    (clinic.folder / "digest").unlink()
    log = clinic.folder / "log"
    assert _in_child(clinic.running(script), log) == 0, log.read_text()
    assert (clinic.folder / "digest").read_text() == watched


def test_what_a_device_would_make_a_hazard_is_seen(clinic: Clinic) -> None:
    """An RNN's dropout and a variable that is set are noted with their lines, whatever the device."""
    script = SCRIPTS["a generator and an RNN"]
    evidence = clinic.watch(clinic.running(script))
    lines = script.splitlines()
    (rnn,) = evidence.noted("rnn")
    assert rnn.data == {"class": "GRU", "layers": 2, "dropout": 0.5, "device": "cpu", "training": True}
    assert rnn.where == f"{clinic.folder}/train.py:{1 + lines.index('rnn = nn.GRU(6, 6, num_layers=2, dropout=0.5)')}"
    (variable,) = evidence.noted("variable")
    assert variable.data == {"name": "CUBLAS_WORKSPACE_CONFIG", "value": ":4096:8", "cuda": False}
    assert (
        variable.where == f"{clinic.folder}/train.py:{2 + lines.index('rnn = nn.GRU(6, 6, num_layers=2, dropout=0.5)')}"
    )
