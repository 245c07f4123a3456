"""One small PyTorch loop in three frameworks, in which the model itself counts samples: `torch_samples.py FORM EPOCHS PACE FOLDER [RANK]`.

`seen` has a place for each sample, and each sample adds its own to the loss: what a step changes there says whose gradients it has, however
many workers computed them. `counted` adds that up, and is a part of the state like the weights. Each process writes to a file of its own in
FOLDER when each step was committed, and one the counts at the end.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch

SAMPLES, BATCH, WORKERS = 2304, 16, 3

form, epochs, pace, folder = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), Path(sys.argv[4])
torch.set_num_threads(1)
torch.manual_seed(1)
data = torch.utils.data.TensorDataset(
    torch.randn(SAMPLES, 64), torch.randint(10, (SAMPLES,)), torch.arange(SAMPLES)
)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
        self.seen = torch.nn.Parameter(torch.zeros(SAMPLES))

    def forward(self, features, labels, samples):
        loss = torch.nn.functional.cross_entropy(self.layers(features), labels)
        return loss + self.seen[samples].mean()


model = Model()
counted = torch.zeros(SAMPLES)
optimizer = torch.optim.SGD(
    [{"params": model.layers.parameters(), "lr": 0.01}, {"params": [model.seen], "lr": 1.0}], lr=0.01
)
stamps = (folder / f"{os.getpid()}.commits").open("a", buffering=1)


def committed():
    """Count what the step has changed, all in units of one sample."""
    with torch.no_grad():
        change = -model.seen
        if change.any():
            counted.add_((change / change[change > 0].min()).round())
            model.seen.zero_()
    stamps.write(f"{time.time()}\n")
    time.sleep(pace)


def write(path):
    Path(path).write_text(json.dumps(counted.tolist()))


if form == "elasticdl":
    import elasticdl.torch as edl

    job = edl.init(seed=1)
    loader = edl.DataLoader(data, batch_size=BATCH, num_epochs=epochs, shuffle=True)
    model, optimizer = edl.elastic(model, optimizer)
    job.state["counted"] = counted
    job.result(write)
    for batch in loader:
        optimizer.zero_grad()
        model(*batch).backward()
        optimizer.step()
        if job.committed:
            committed()

elif (
    form == "torchrun"
):  # https://docs.pytorch.org/tutorials/beginner/ddp_series_fault_tolerance.html: a snapshot for each epoch
    torch.distributed.init_process_group("gloo")
    snapshot, first = folder / "snapshot.pt", 0
    if snapshot.exists():
        found = torch.load(snapshot)
        model.load_state_dict(found["model"])
        counted.copy_(found["counted"])
        first = found["epoch"]
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    sampler = torch.utils.data.DistributedSampler(data)
    loader = torch.utils.data.DataLoader(data, batch_size=BATCH, sampler=sampler)
    for epoch in range(first, epochs):
        sampler.set_epoch(epoch)
        for batch in loader:
            optimizer.zero_grad()
            wrapped(*batch).backward()
            optimizer.step()
            committed()
        if torch.distributed.get_rank() == 0:
            torch.save({"model": model.state_dict(), "counted": counted, "epoch": epoch + 1}, snapshot)
    if torch.distributed.get_rank() == 0:
        write(folder / "counts.json")
    torch.distributed.destroy_process_group()

else:  # torchft's train_ddp.py: its sampler deals the data out to replicas, and training ends after a number of steps
    from datetime import timedelta

    from torch.distributed import TCPStore
    from torchft import DistributedDataParallel, DistributedSampler, Manager, Optimizer, ProcessGroupGloo

    rank = int(sys.argv[5])
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    inner = optimizer

    def load(state):
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])
        counted.copy_(state["counted"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=5)),
        load_state_dict=load,
        state_dict=lambda: {
            "model": model.state_dict(), "optimizer": inner.state_dict(), "counted": counted
        },
        min_replica_size=1,
        timeout=timedelta(seconds=10),
        rank=0,
        world_size=1,
        store_addr="localhost",
        store_port=store.port,
        lighthouse_addr=os.environ["TORCHFT_LIGHTHOUSE"],
        replica_id=f"replica{rank}-",
        hostname="localhost",
    )  # fmt: skip
    sampler = DistributedSampler(data, rank, WORKERS, group_rank=0, num_replicas=1, shuffle=True)
    loader = torch.utils.data.DataLoader(data, batch_size=BATCH, sampler=sampler)
    wrapped, optimizer = DistributedDataParallel(manager, model), Optimizer(manager, inner)
    steps, epoch = epochs * len(loader), 0
    while (
        len(list(folder.glob("*.commits"))) < WORKERS
    ):  # all replicas begin together, or the first one trains its part alone
        time.sleep(0.1)
    while manager.current_step() < steps:
        sampler.set_epoch(epoch)
        epoch += 1
        for batch in loader:
            before = manager.current_step()
            optimizer.zero_grad()
            wrapped(*batch).backward()
            optimizer.step()
            if manager.current_step() > before:
                committed()
            if manager.current_step() >= steps:
                break
    write(folder / "counts.json")
    manager.shutdown()
