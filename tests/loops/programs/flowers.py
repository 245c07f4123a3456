"""Iris flowers in PyTorch with everything that has a state, at the pace of a larger model: `flowers.py DATA RESULT`."""

import os
import sys
import time
from pathlib import Path

import numpy as np
import torch

import elasticdl.torch as edl

SECONDS = float(os.environ.get("PACE", "0.5"))
"""Of a batch, while the file in the environment variable GO is missing: faults have their moments."""

job = edl.init(seed=3)
table = np.loadtxt(sys.argv[1], delimiter=",", skiprows=1, dtype=np.float32)
dataset = torch.utils.data.TensorDataset(torch.from_numpy(table[:, :4]), torch.from_numpy(table[:, 4]).long())
loader = edl.DataLoader(
    dataset,
    batch_size=8,
    num_epochs=int(os.environ["EPOCHS"]),
    shuffle=True,
    global_batch_size=16,
    num_workers=1,
)
model = torch.nn.Sequential(
    torch.nn.Linear(4, 16),
    torch.nn.BatchNorm1d(16),
    torch.nn.ReLU(),
    torch.nn.Dropout(0.1),
    torch.nn.Linear(16, 3),
)
optimizer = torch.optim.AdamW(model.parameters(), 0.02)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, gamma=0.7)
model, optimizer, scheduler = edl.elastic(model, optimizer, scheduler=scheduler)
job.clip_grad_norm_(model.parameters(), 1.0)
job.state["seen"] = 0


def write(path):
    # what is done at the end takes as long as with a larger model: faults have their moments in the final view
    while "HOLD" in os.environ and Path(os.environ["HOLD"]).exists():
        time.sleep(0.05)
    tensors = {name: value.numpy() for name, value in model.state_dict().items()}
    with open(path, "wb") as file:
        np.savez(file, **tensors, rate=scheduler.get_last_lr(), seen=job.state["seen"])


job.result(write, sys.argv[2] if len(sys.argv) > 2 else "")
for _ in loader.epochs():
    for features, labels in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(features), labels)
        loss.backward()
        job.report(loss)
        optimizer.step()
        if job.committed:
            job.state["seen"] += 16
        if "GO" in os.environ and not Path(os.environ["GO"]).exists():
            time.sleep(SECONDS)
    scheduler.step()
job.print(f"trained to step {job.step}")
