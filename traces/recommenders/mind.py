"""MIND: four interests of 100 clicks by three rounds of routing."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, items, dim, interests, length):
        super().__init__()
        self.items = nn.Embedding(items, dim)
        self.shared = nn.Linear(dim, dim, bias=False)
        self.register_buffer("start", torch.randn(interests, length))

    def forward(self, history, target):
        x = self.shared(self.items(history))
        logits = self.start.expand(len(x), -1, -1)
        for _ in range(3):
            capsules = torch.bmm(torch.softmax(logits, 1), x)
            norm = (capsules**2).sum(2, keepdim=True)
            capsules = capsules * norm / (1 + norm) / torch.sqrt(norm + 1e-9)
            logits = logits + torch.bmm(capsules, x.transpose(1, 2))
        goal = self.items(target).unsqueeze(2)
        return torch.softmax(torch.bmm(capsules, goal).squeeze(2), 1)


def get_init_inputs():
    return [1_000_000, 64, 4, 100]


def get_inputs():
    return [torch.randint(0, 1_000_000, (2048, 100)), torch.randint(0, 1_000_000, (2048,))]
