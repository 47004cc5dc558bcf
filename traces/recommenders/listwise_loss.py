"""A pairwise loss over lists of 200 scored items."""

import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.score = nn.Sequential(nn.Linear(width, 128), nn.ReLU(), nn.Linear(128, 1))

    def forward(self, x, labels):
        scores = self.score(x).squeeze(2)
        apart = scores.unsqueeze(2) - scores.unsqueeze(1)
        better = (labels.unsqueeze(2) > labels.unsqueeze(1)).float()
        gain = (torch.exp2(labels).unsqueeze(2) - torch.exp2(labels).unsqueeze(1)).abs()
        return (F.softplus(-apart) * better * gain).sum((1, 2)).mean()


def get_init_inputs():
    return [136]


def get_inputs():
    return [torch.rand(512, 200, 136), torch.randint(0, 5, (512, 200)).float()]
