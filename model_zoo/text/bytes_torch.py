"""The next byte of a text: a small transformer in PyTorch.

Records: column `text`, pieces of equal length, as `make_data.py` writes them. The model sees all bytes of a piece but the last one, and
says for each of them which byte follows.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

BYTES = 256


class Block(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.mixed = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def forward(self, x):
        parts = self.attention(self.before(x)).unflatten(-1, (3, self.heads, -1))
        queries, keys, values = parts.permute(2, 0, 3, 1, 4)  # [n, heads, length, width / heads] each
        seen = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        x = x + self.mixed(seen.transpose(1, 2).flatten(2))
        return x + self.wide(self.between(x))


class Transformer(nn.Module):
    def __init__(self, length, width, heads, layers, dropout):
        super().__init__()
        self.bytes, self.places = nn.Embedding(BYTES, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads, dropout) for _ in range(layers)))
        self.last = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, BYTES))

    def forward(self, text):
        places = torch.arange(text.shape[1], device=text.device)
        return self.last(self.blocks(self.bytes(text) + self.places(places)))


def custom_model(length=64, width=64, heads=4, layers=2, dropout=0.1):
    return Transformer(length, width, heads, layers, dropout)


def loss(labels, outputs):
    return F.cross_entropy(outputs.flatten(0, 1), labels.flatten())


def optimizer(parameters):
    return torch.optim.AdamW(parameters, 3e-3)


def lr_scheduler(optimizer):
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 20))


def feed(records, mode, metadata):
    pieces = np.stack([np.frombuffer(piece, np.uint8) for piece in records["text"]])
    text = torch.from_numpy(pieces.astype(np.int64))
    return text[:, :-1] if mode == "prediction" else (text[:, :-1], text[:, 1:])


def eval_metrics_fn():
    return {"accuracy": lambda labels, outputs: (labels == outputs.argmax(-1)).float().mean(1)}
