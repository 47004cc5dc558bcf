"""Two LSTM layers over 50 events of 96 features."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.lstm = nn.LSTM(width, hidden, num_layers=2, batch_first=True)
        self.out = nn.Linear(hidden, 10)

    def forward(self, x):
        return self.out(self.lstm(x)[0].mean(1))


def get_init_inputs():
    return [96, 256]


def get_inputs():
    return [torch.rand(512, 50, 96)]
