"""One loop in PyTorch in three forms: plain, under DistributedDataParallel, and as a worker of a job: `torch_loop.py FORM SIZE STEPS OUT`.

Writes to OUT, from one process, the median seconds of a step and the processor seconds of one, of the steps after the first ones.
"""

import json
import os
import statistics
import sys
import time

import torch

WARM = 20
LAYERS = {"large": (784, 1900, 2000, 10), "small": (64, 32, 10), "images": (784,)}
RECORDS = 4096
BATCH = {"large": 64, "small": 32, "images": 64}

form, size, steps, out = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
torch.set_num_threads(1)
width, *others = LAYERS[size]
layers = []
for following in others:
    layers += [torch.nn.Linear(width, following), torch.nn.ReLU()]
    width = following
if size == "images":
    layers = [torch.nn.Unflatten(1, (1, 28, 28))]
    for channels, following in ((1, 32), (32, 64)):
        layers += [torch.nn.Conv2d(channels, following, 3), torch.nn.ReLU(), torch.nn.MaxPool2d(2)]
    layers += [torch.nn.Flatten(), torch.nn.Linear(1600, 10)]
else:
    layers.pop()  # the last layer has no activation
torch.manual_seed(1)
data = torch.utils.data.TensorDataset(torch.randn(RECORDS, LAYERS[size][0]), torch.randint(10, (RECORDS,)))
model = torch.nn.Sequential(*layers)
optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
writes, end = True, steps + WARM
if form == "job":
    import elasticdl.torch as edl

    job = edl.init(seed=1)
    batches = edl.DataLoader(data, batch_size=BATCH[size], num_epochs=0, max_step=end)
    model, optimizer = edl.elastic(model, optimizer)
elif form == "ddp":
    torch.distributed.init_process_group("gloo")
    writes = torch.distributed.get_rank() == 0
    model = torch.nn.parallel.DistributedDataParallel(model)
    sampler = torch.utils.data.DistributedSampler(data, shuffle=False)
if form != "job":
    loader = torch.utils.data.DataLoader(
        data, batch_size=BATCH[size], sampler=sampler if form == "ddp" else None, drop_last=True
    )

    def repeated():
        while True:
            yield from loader

    batches = repeated()

moments, processor = [], 0.0
for features, labels in batches:
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(features), labels).backward()
    optimizer.step()
    moments.append(time.perf_counter())
    if len(moments) == WARM:
        processor = time.process_time()
    if form != "job" and len(moments) == end:
        break
spent = (time.process_time() - processor) / (len(moments) - WARM)
taken = [after - before for before, after in zip(moments[WARM - 1 :], moments[WARM:], strict=False)]
if job.is_writer if form == "job" else writes:
    with open(out, "w") as file:
        json.dump([statistics.median(taken), spent], file)
if form == "ddp":
    torch.distributed.destroy_process_group()
    # Without the interpreter's own end: one in ten of them aborts there ("terminate called without an active exception"), in a thread that
    # PyTorch has not joined, and torchrun calls that a failure.
    os._exit(0)
