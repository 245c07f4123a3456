"""One small PyTorch loop in four frameworks, in which the model itself counts samples: `torch_samples.py FORM EPOCHS PACE FOLDER [RANK]`.

`seen` has a place for each sample, and each sample adds its own to the loss: what a step changes there says whose gradients it has, however
many workers computed them. `counted` adds that up, and is a part of the state like the weights: a step that a framework takes back is taken
back there too. Each process writes to a file of its own in FOLDER when each step was committed, and one the counts at the end. A step is
made longer by PACE seconds until a file `go` is there.
"""

import json
import os
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import torch

SAMPLES, BATCH, WORKERS = 2304, 16, 3
SNAPSHOT = "snapshot.pt"


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
        self.seen = torch.nn.Parameter(torch.zeros(SAMPLES))

    def forward(self, features, labels, samples):
        loss = torch.nn.functional.cross_entropy(self.layers(features), labels)
        return loss + self.seen[samples].mean()


class Training:
    """Model, data, optimizer and counts of one process."""

    def __init__(self, epochs, pace, folder):
        torch.set_num_threads(1)
        torch.manual_seed(1)
        self.epochs, self.pace, self.folder = epochs, pace, Path(folder)
        self.data = torch.utils.data.TensorDataset(
            torch.randn(SAMPLES, 64), torch.randint(10, (SAMPLES,)), torch.arange(SAMPLES)
        )
        self.model = Model()
        self.counted = torch.zeros(SAMPLES)
        self.optimizer = torch.optim.SGD(
            [
                {"params": self.model.layers.parameters(), "lr": 0.01},
                {"params": [self.model.seen], "lr": 1.0},
            ],
            lr=0.01,
        )
        self.stamps = (self.folder / f"{os.getpid()}.commits").open("a", buffering=1)

    def committed(self):
        """Count what the step has changed, all in units of one sample."""
        with torch.no_grad():
            change = -self.model.seen
            if change.any():
                self.counted.add_((change / change[change > 0].min()).round())
                self.model.seen.zero_()
        self.stamps.write(f"{time.time()}\n")
        if not (self.folder / "go").exists():
            time.sleep(self.pace)

    def write(self, path):
        draft = Path(f"{path}.{os.getpid()}")  # each replica of torchft writes the same
        draft.write_text(json.dumps(self.counted.tolist()))
        draft.replace(path)

    def save(self, path, epoch):
        """Write a snapshot, whole or not at all."""
        torch.save({"model": self.model.state_dict(), "counted": self.counted, "epoch": epoch}, f"{path}.new")
        Path(f"{path}.new").replace(path)

    def load(self, path):
        """Return the epoch that a snapshot continues with."""
        found = torch.load(path)
        self.model.load_state_dict(found["model"])
        self.counted.copy_(found["counted"])
        return found["epoch"]

    def train(self, model, first, after_epoch):
        """Train with DistributedDataParallel, as torchrun's and Ray's tutorials do."""
        sampler = torch.utils.data.DistributedSampler(self.data)
        loader = torch.utils.data.DataLoader(self.data, batch_size=BATCH, sampler=sampler)
        for epoch in range(first, self.epochs):
            sampler.set_epoch(epoch)
            for batch in loader:
                self.optimizer.zero_grad()
                model(*batch).backward()
                self.optimizer.step()
                self.committed()
            after_epoch(epoch + 1)


def in_elasticdl(training):
    import elasticdl.torch as edl

    job = edl.init(seed=1)
    loader = edl.DataLoader(training.data, batch_size=BATCH, num_epochs=training.epochs, shuffle=True)
    model, optimizer = edl.elastic(training.model, training.optimizer)
    job.state["counted"] = training.counted
    job.result(training.write)
    for batch in loader:
        optimizer.zero_grad()
        model(*batch).backward()
        optimizer.step()
        if job.committed:
            training.committed()


def in_torchrun(training):
    """See https://docs.pytorch.org/tutorials/beginner/ddp_series_fault_tolerance.html: a snapshot for each epoch."""
    # Gloo's default is half an hour
    torch.distributed.init_process_group("gloo", timeout=timedelta(seconds=20))
    snapshot, rank = training.folder / SNAPSHOT, torch.distributed.get_rank()

    def after_epoch(epoch):
        if rank == 0:
            training.save(snapshot, epoch)

    first = training.load(snapshot) if snapshot.exists() else 0
    training.train(torch.nn.parallel.DistributedDataParallel(training.model), first, after_epoch)
    if rank == 0:
        training.write(training.folder / "counts.json")
    torch.distributed.destroy_process_group()


def in_ray(settings):
    """See https://docs.ray.io/en/latest/train/user-guides/fault-tolerance.html: a checkpoint for each epoch."""
    import ray.train
    import ray.train.torch

    training = Training(**settings)
    rank, found, first = ray.train.get_context().get_world_rank(), ray.train.get_checkpoint(), 0
    if found:
        with found.as_directory() as folder:
            first = training.load(Path(folder) / SNAPSHOT)

    def after_epoch(epoch):
        with tempfile.TemporaryDirectory() as folder:
            if rank == 0:
                training.save(Path(folder) / SNAPSHOT, epoch)
            ray.train.report(
                {"epoch": epoch},
                checkpoint=ray.train.Checkpoint.from_directory(folder) if rank == 0 else None,
            )

    training.train(ray.train.torch.prepare_model(training.model), first, after_epoch)
    if rank == 0:
        training.write(training.folder / "counts.json")


def ray_driver(epochs, pace, folder):
    import ray
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    ray.init(num_cpus=WORKERS + 1, include_dashboard=False, _temp_dir=f"{folder}/ray")
    TorchTrainer(
        in_ray,
        train_loop_config={"epochs": epochs, "pace": pace, "folder": folder},
        scaling_config=ScalingConfig(num_workers=WORKERS),
        torch_config=TorchConfig(backend="gloo"),
        run_config=RunConfig(
            name="samples", storage_path=f"{folder}/storage", failure_config=FailureConfig(max_failures=-1)
        ),
    ).fit()
    ray.shutdown()


def in_torchft(training, rank):
    """See torchft's train_ddp.py: its sampler deals the data out to replicas, and training ends after a number of steps.

    That example goes on with its own place in the data after a restart; here the place follows the group's step, so that a replica that
    comes back leaves nothing out and takes nothing twice beside what was its part while it was away.
    """
    from torch.distributed import TCPStore
    from torchft import DistributedDataParallel, DistributedSampler, Manager, Optimizer, ProcessGroupGloo

    inner = training.optimizer
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)

    def load(state):
        training.model.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])
        training.counted.copy_(state["counted"])

    def state():
        return {
            "model": training.model.state_dict(),
            "optimizer": inner.state_dict(),
            "counted": training.counted,
        }

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=5)),
        load_state_dict=load,
        state_dict=state,
        min_replica_size=1,
        timeout=timedelta(seconds=10),
        rank=0,
        world_size=1,
        store_addr="localhost",
        store_port=store.port,
        lighthouse_addr=os.environ["TORCHFT_LIGHTHOUSE"],
        replica_id=f"replica{rank}-",
        hostname="localhost",
    )
    sampler = DistributedSampler(training.data, rank, WORKERS, group_rank=0, num_replicas=1, shuffle=True)
    loader = torch.utils.data.BatchSampler(sampler, BATCH, drop_last=False)
    model, optimizer = DistributedDataParallel(manager, training.model), Optimizer(manager, inner)
    (training.folder / f"{rank}.ready").touch()
    while len(list(training.folder.glob("*.ready"))) < WORKERS:
        time.sleep(0.01)  # all replicas begin together, or the first one trains its part alone
    steps, at, batches = training.epochs * len(loader), -1, []
    while (step := manager.current_step()) < steps:
        epoch, place = divmod(step, len(loader))
        if epoch != at:
            at = epoch
            sampler.set_epoch(epoch)
            batches = list(loader)
        optimizer.zero_grad()
        model(*training.data[batches[place]]).backward()
        optimizer.step()
        if manager.current_step() > step:
            training.committed()
    training.write(training.folder / "counts.json")
    manager.shutdown()


def main():
    form, epochs, pace, folder = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
    if form == "ray":
        ray_driver(epochs, pace, folder)
        return
    training = Training(epochs, pace, folder)
    if form == "elasticdl":
        in_elasticdl(training)
    elif form == "torchrun":
        in_torchrun(training)
    else:
        in_torchft(training, int(sys.argv[5]))


if __name__ == "__main__":
    main()
