"""SR-GNN: sessions as graphs of up to 32 items, two gated steps along links in and out, soft attention."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, items, dim, steps):
        super().__init__()
        self.steps = steps
        self.items = nn.Embedding(items, dim)
        self.incoming = nn.Linear(dim, dim)
        self.outgoing = nn.Linear(dim, dim)
        self.of_message = nn.Linear(2 * dim, 3 * dim)
        self.of_state = nn.Linear(dim, 3 * dim)
        self.of_last, self.of_each = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.weight = nn.Linear(dim, 1, bias=False)
        self.mix = nn.Linear(2 * dim, dim)

    def forward(self, ids, links_in, links_out, last):
        x = self.items(ids)
        for _ in range(self.steps):
            message = torch.cat([torch.bmm(links_in, self.incoming(x)), torch.bmm(links_out, self.outgoing(x))], 2)
            keep, reset, new = self.of_message(message).chunk(3, 2)
            kept, dropped, old = self.of_state(x).chunk(3, 2)
            candidate = torch.tanh(new + torch.sigmoid(reset + dropped) * old)
            x = candidate + torch.sigmoid(keep + kept) * (x - candidate)
        end = x.gather(1, last.view(-1, 1, 1).expand(-1, 1, x.shape[2])).squeeze(1)
        weights = self.weight(torch.sigmoid(self.of_last(end).unsqueeze(1) + self.of_each(x)))
        return self.mix(torch.cat([end, (weights * x).sum(1)], 1)) @ self.items.weight.T


def get_init_inputs():
    return [43_000, 100, 2]


def get_inputs():
    links = [torch.empty(512, 32, 32).uniform_() / 16 for _ in range(2)]
    return [torch.randint(0, 43_000, (512, 32)), *links, torch.randint(0, 32, (512,))]
