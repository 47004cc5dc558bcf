"""TransAct: a user's 100 actions joined with a candidate, two encoder layers in fp16, maxima kept."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.actions = nn.Embedding(20, 32)
        layer = nn.TransformerEncoderLayer(2 * dim + 32, 2, 2 * dim, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear((2 * dim + 32) * 11, 512)
        self.half()

    def forward(self, actions, items, candidate):
        wide = candidate.unsqueeze(1).expand_as(items)
        x = self.encoder(torch.cat([self.actions(actions), items, wide], 2))
        return self.out(torch.cat([x[:, :10].flatten(1), x.amax(1)], 1))


def get_init_inputs():
    return [112]


def get_inputs():
    return [torch.randint(0, 20, (1024, 100)), torch.rand(1024, 100, 112).half(), torch.rand(1024, 112).half()]
