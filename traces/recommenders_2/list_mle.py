"""ListMLE beside an approximate NDCG: 1,024 lists of 120 items are scored, sorted and compared."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, width, temperature):
        super().__init__()
        self.temperature = temperature
        layers = [nn.Linear(width, 256), nn.LayerNorm(256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 1)]
        self.score = nn.Sequential(*layers)

    def forward(self, x, labels):
        scores = self.score(x).squeeze(2)
        best, order = torch.sort(labels, dim=1, descending=True)
        sorted_ = scores.gather(1, order)
        top = sorted_.amax(1, keepdim=True)
        rest = torch.cumsum(torch.exp(sorted_ - top).flip(1), 1).flip(1)
        likelihood = (torch.log(rest) + top - sorted_).sum(1)
        places = torch.log2(torch.arange(2, x.shape[1] + 2, device=x.device))
        ideal = ((torch.exp2(best) - 1) / places).sum(1)
        behind = torch.sigmoid((sorted_.unsqueeze(1) - sorted_.unsqueeze(2)) / self.temperature).sum(2) + 0.5
        gained = ((torch.exp2(best) - 1) / torch.log2(1 + behind)).sum(1) / ideal.clamp(min=1)
        return (likelihood - gained).mean()


def get_init_inputs():
    return [220, 0.1]


def get_inputs():
    return [torch.empty(1024, 120, 220).uniform_(), torch.randint(0, 5, (1024, 120)).float()]
