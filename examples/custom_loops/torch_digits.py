"""Handwritten digits with a small convolutional network in PyTorch."""

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, Dataset

import elasticdl.torch as edl


class Digits(Dataset):
    def __init__(self, train):
        images, labels = load_digits(return_X_y=True)
        part = slice(1500) if train else slice(1500, None)
        self.images = torch.tensor(images[part], dtype=torch.float32).view(-1, 1, 8, 8) / 16
        self.labels = torch.tensor(labels[part])

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.images[index], self.labels[index]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3)
        self.conv2 = nn.Conv2d(16, 32, 3)
        self.dropout = nn.Dropout(0.25)
        self.fc1 = nn.Linear(128, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc1(self.dropout(torch.flatten(x, 1))))
        return F.log_softmax(self.fc2(x), dim=1)


def train(model, device, train_loader, optimizer, epoch):
    model.train()
    for batch, (data, target) in enumerate(train_loader):
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        if batch % 20 == 0:
            print(f"epoch {epoch}, batch {batch} of {len(train_loader)}: loss {loss.item():.4f}")


def test(model, device, test_loader):
    model.eval()
    loss, correct = 0.0, 0
    with torch.no_grad():
        for data, target in test_loader:
            data, target = data.to(device), target.to(device)
            output = model(data)
            loss += F.nll_loss(output, target, reduction="sum").item()
            correct += (output.argmax(1) == target).sum().item()
    count = len(test_loader.dataset)
    print(f"test: loss {loss / count:.4f}, accuracy {correct / count:.3f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--lr", type=float, default=1.0)
    parser.add_argument("--gamma", type=float, default=0.9)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--save", default="digits.pt")
    args = parser.parse_args()

    job = edl.init(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_loader = edl.DataLoader(Digits(train=True), args.batch_size, shuffle=True, num_epochs=args.epochs)
    test_loader = DataLoader(Digits(train=False), 1000)
    model = Net().to(device)
    optimizer = torch.optim.Adadelta(model.parameters(), lr=args.lr)
    scheduler = StepLR(optimizer, step_size=1, gamma=args.gamma)
    model, optimizer, scheduler = edl.elastic(model, optimizer, scheduler=scheduler)
    for epoch in train_loader.epochs():
        train(model, device, train_loader, optimizer, epoch)
        test(model, device, test_loader)
        scheduler.step()
    job.result(lambda path: torch.save(model.state_dict(), path), args.save)


if __name__ == "__main__":
    main()
