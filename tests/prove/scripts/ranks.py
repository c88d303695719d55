"""Train a tiny model on two ranks with DistributedDataParallel; each rank draws its own batches."""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--resume", action="store_true")
parser.add_argument("--share", action="store_true", help="restore rank 0's generator to every rank")
options = parser.parse_args()

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = int(os.environ["RANK"])
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
torch.manual_seed(100 + rank)
path = options.out / "checkpoint.pt"
done = 0
if options.resume:
    state = torch.load(path)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["rng"][0 if options.share else rank])
    done = state["steps"]
for step in range(done + 1, 9):
    loss = model(torch.rand(8, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 3 == 0:
        streams = [torch.empty_like(torch.get_rng_state()) for _ in range(2)]
        dist.all_gather(streams, torch.get_rng_state())
        if rank == 0:
            temporary = path.with_suffix(".tmp")
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rng": streams, "steps": step}
            torch.save(state, temporary)
            temporary.replace(path)
dist.barrier()
dist.destroy_process_group()
