"""Train a tiny model for some steps: one thread, random batches, checkpoints written in the way that is asked for."""

import argparse
import json
import signal
import sys
import time
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save, save_file

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--resume", action="store_true")
parser.add_argument("--steps", type=int, default=10)
parser.add_argument("--passes", type=int, default=1, help="backward passes a step")
parser.add_argument("--save-every", type=int, default=3)
parser.add_argument("--writer", default="torch")
parser.add_argument("--in-place", action="store_true")
parser.add_argument("--one-temporary", action="store_true", help="use the same temporary name for every checkpoint")
parser.add_argument("--forget", choices=["rng", "momentum"])
parser.add_argument("--unseeded-from", type=int, help="draw from another stream in every run from this step on")
parser.add_argument("--on-signal", choices=["save-and-end", "save", "ignore", "hang"])
parser.add_argument("--signal", default="SIGTERM")
parser.add_argument("--crash-at", type=int, help="raise before this step of a resumed run")
parser.add_argument("--hang-at", type=int)
parser.add_argument("--width", type=int, default=4)
options = parser.parse_args()

torch.set_num_threads(1)
if options.unseeded_from != 1:
    torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(options.width, 4), torch.nn.Dropout(0.1), torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
names = [name for name, _ in model.named_parameters()]
done = 0
asked = False


def state() -> dict[str, torch.Tensor]:
    found = {name: weight.detach() for name, weight in model.named_parameters()}
    found |= {f"momentum.{name}": optimizer.state[w]["momentum_buffer"] for name, w in model.named_parameters()}
    return found | {"rng": torch.get_rng_state(), "steps": torch.tensor(done)}


def write(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    if options.writer == "torch":
        torch.save(tensors, path)
    elif options.writer == "safetensors" and options.in_place:
        path.write_bytes(save(tensors))  # as safetensors itself did before 0.8
    elif options.writer == "safetensors":
        save_file(tensors, path)
    elif options.writer == "numpy":
        with path.open("wb") as file:
            np.save(file, {name: tensor.numpy() for name, tensor in tensors.items()})
    elif options.writer == "json":
        with open(path, "w") as file:  # noqa: PTH123  # the builtin, as many a script does
            json.dump({name: [str(tensor.dtype)[6:], tensor.tolist()] for name, tensor in tensors.items()}, file)


def read(path: Path) -> dict[str, torch.Tensor]:
    if options.writer == "torch":
        return torch.load(path)
    if options.writer == "safetensors":
        return load_file(path)
    if options.writer == "numpy":
        return {name: torch.from_numpy(a) for name, a in np.load(path, allow_pickle=True).item().items()}
    values = json.loads(path.read_text())
    return {name: torch.tensor(value, dtype=getattr(torch, dtype)) for name, (dtype, value) in values.items()}


def checkpoint() -> None:
    if options.writer == "folder":  # two files in a folder of their own: weights, and the rest
        folder = options.out / f"step-{done:03}"
        folder.mkdir(exist_ok=True)
        everything = state()
        torch.save({name: everything.pop(name) for name in names}, folder / "weights.pt")
        torch.save(everything, folder / "rest.pt")
        return
    path = options.out / f"step-{done:03}.checkpoint"
    if options.in_place or options.writer == "safetensors":
        write(path, state())
    else:
        temporary = options.out / "checkpoint.tmp" if options.one_temporary else path.with_suffix(".tmp")
        write(temporary, state())
        temporary.replace(path)


def restore() -> None:
    global done  # noqa: PLW0603
    newest = max(options.out.glob("step-*.checkpoint" if options.writer != "folder" else "step-*"), default=None)
    if newest is None:
        sys.exit(f"no checkpoint in {options.out}")
    print("resuming from", newest)
    if options.writer == "folder":
        found = torch.load(newest / "weights.pt")
        if (newest / "rest.pt").exists() and (newest / "rest.pt").stat().st_size > 4000:
            found |= torch.load(newest / "rest.pt")
    else:
        found = read(newest)
    model.load_state_dict({name: found[name] for name in names})
    done = int(found.get("steps", 0))
    for name, weight in model.named_parameters():
        if f"momentum.{name}" in found and options.forget != "momentum":
            optimizer.state[weight]["momentum_buffer"] = found[f"momentum.{name}"]
    if "rng" in found and options.forget != "rng":
        torch.set_rng_state(found["rng"])


def signalled(_number: int, _frame: object) -> None:
    global asked  # noqa: PLW0603
    asked = options.on_signal != "ignore"
    if options.on_signal == "hang":
        time.sleep(600)


if options.on_signal:
    signal.signal(getattr(signal, options.signal), signalled)
options.out.mkdir(parents=True, exist_ok=True)
if options.resume:
    restore()
while done < options.steps:
    if options.resume and options.crash_at == done + 1:
        raise RuntimeError("planted: the resumed run breaks here")
    if options.hang_at == done + 1:
        time.sleep(600)
    if options.unseeded_from == done + 1:
        torch.seed()
    optimizer.zero_grad()
    for _ in range(options.passes):
        loss = model(torch.rand(8, options.width)).square().mean()
        loss.backward()
    optimizer.step()
    done += 1
    print("step", done, loss.item(), flush=True)
    if done % options.save_every == 0 or asked:
        checkpoint()
    if asked and options.on_signal == "save-and-end":
        print("saved on a signal", flush=True)
        break
    asked = False
