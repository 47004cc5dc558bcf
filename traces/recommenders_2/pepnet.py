"""PEPNet: gates of the domain scale the embeddings, gates of the user each layer of three task towers."""

import torch
from torch import nn


def gate(width, out):
    return nn.Sequential(nn.Linear(width, out), nn.ReLU(), nn.Linear(out, out), nn.Sigmoid())


class Model(nn.Module):
    def __init__(self, rows, fields, dim, hidden, tasks):
        super().__init__()
        sizes = [fields * dim, *hidden]
        self.table, self.domains, self.users = nn.Embedding(rows, dim), nn.Embedding(8, dim), nn.Embedding(rows, dim)
        self.gate = gate(sizes[0] + dim, sizes[0])
        self.gates = nn.ModuleList(gate(sizes[0] + dim, width) for width in hidden)
        self.towers = nn.ModuleList(nn.ModuleList(map(nn.Linear, sizes, hidden)) for _ in range(tasks))
        self.out = nn.ModuleList(nn.Linear(hidden[-1], 1) for _ in range(tasks))

    def forward(self, ids, domain, user):
        x = self.table(ids).flatten(1)
        x = x * 2 * self.gate(torch.cat([x.detach(), self.domains(domain)], 1))
        known = torch.cat([x.detach(), self.users(user)], 1)
        scales, found = [2 * gate(known) for gate in self.gates], []
        for tower, out in zip(self.towers, self.out):
            h = x
            for layer, scale in zip(tower, scales):
                h = torch.relu(layer(h)) * scale
            found.append(torch.sigmoid(out(h)))
        return torch.cat(found, 1)


def get_init_inputs():
    return [800_000, 40, 16, (512, 256, 128), 3]


def get_inputs():
    return [torch.randint(0, 800_000, (1024, 40)), torch.randint(0, 8, (1024,)), torch.randint(0, 800_000, (1024,))]
