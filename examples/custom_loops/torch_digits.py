"""A custom training loop in PyTorch: handwritten digits, with an average of the weights.

python examples/custom_loops/torch_digits.py
elasticdl run --num_workers=3 --output=digits.pt -- python examples/custom_loops/torch_digits.py
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn

import elasticdl.torch as edl

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=2e-3)
parser.add_argument("--num_epochs", type=int, default=20)
arguments = parser.parse_args()

job = edl.init(seed=1)
images, labels = load_digits(return_X_y=True)
images = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16
digits = torch.utils.data.TensorDataset(images[:1500], torch.tensor(labels[:1500]))
loader = edl.DataLoader(digits, batch_size=32, num_epochs=arguments.num_epochs, shuffle=True)

model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
    nn.Flatten(), nn.Dropout(0.2), nn.Linear(1024, 10),
)  # fmt: skip
optimizer = torch.optim.AdamW(model.parameters(), arguments.lr)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, gamma=0.5)
smooth = torch.optim.swa_utils.get_ema_multi_avg_fn(0.98)
average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=smooth, use_buffers=True)
job.state["average"] = average
model, optimizer, scheduler = edl.elastic(model, optimizer, scheduler=scheduler)
job.result(lambda path: torch.save(average.module.state_dict(), path), path="digits.pt")


def accuracy():
    average.eval()
    with torch.no_grad():
        return float((average(images[1500:]).argmax(1) == torch.tensor(labels[1500:])).float().mean())


for epoch in loader.epochs():
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        job.report(loss)
        optimizer.step()
        if job.committed:
            average.update_parameters(model)
    scheduler.step()
    job.print(f"epoch {epoch}: step {job.step}, accuracy {accuracy():.3f}")
