"""What predicting large models takes of the machine that does it: seconds and memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs PyTorch: the CPU build is enough")

MAX_IMPORTS, MAX_GB = 10.0, 1.0
"""Seconds of processor time, in imports of PyTorch on the same machine; memory."""
MODELS = '''\
import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    """Grouped queries and a gated MLP, as models of 70 billion parameters have them; 20 of 80."""

    def __init__(self, width=8192, heads=64, groups=8, hidden=28672):
        super().__init__()
        self.heads, self.dim = heads, width // heads
        self.before, self.between = nn.RMSNorm(width), nn.RMSNorm(width)
        self.queries = nn.Linear(width, width, bias=False)
        self.keys = nn.Linear(width, groups * self.dim, bias=False)
        self.values = nn.Linear(width, groups * self.dim, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def split(self, x):
        x = x.unflatten(-1, (-1, self.dim)).transpose(1, 2)
        return x.repeat_interleave(self.heads // x.shape[1], 1)

    def forward(self, x):
        y = self.before(x)
        q, k, v = (self.split(part(y)) for part in (self.queries, self.keys, self.values))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        y = self.between(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Language(nn.Sequential):
    def __init__(self, words=128256, width=8192):
        blocks = (Block() for _ in range(20))
        head = nn.Linear(width, words, bias=False)
        super().__init__(nn.Embedding(words, width), *blocks, nn.RMSNorm(width), head)


class Residual(nn.Module):
    def __init__(self, inside, width, out, stride):
        super().__init__()
        layers = []
        for a, b, k, s in ((inside, width, 1, 1), (width, width, 3, stride), (width, out, 1, 1)):
            layers += [nn.Conv2d(a, b, k, s, k // 2, bias=False), nn.BatchNorm2d(b), nn.ReLU()]
        self.layers = nn.Sequential(*layers[:-1])
        self.around = nn.Conv2d(inside, out, 1, stride, bias=False)

    def forward(self, x):
        return F.relu(self.layers(x) + self.around(x))


class Images(nn.Sequential):
    """49 convolutions on the way, and a linear layer."""

    def __init__(self):
        layers, inside = [nn.Conv2d(3, 64, 7, 2, 3), nn.MaxPool2d(3, 2, 1)], 64
        for width, count in ((64, 3), (128, 4), (256, 6), (512, 3)):
            for at in range(count):
                stride = 2 if width > 64 and not at else 1
                layers.append(Residual(inside, width, 4 * width, stride))
                inside = 4 * width
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))
'''
RUN = """\
import json, resource, sys, time

began = time.process_time()
import torch
imported = time.process_time() - began

def most_gb():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9

from perfmodel.cli import main

before = most_gb()
for line in json.loads(sys.argv[1]):
    began = time.process_time()
    assert main(line) == 0
    used = {"s": time.process_time() - began, "gb": most_gb() - before, "import_s": imported}
    print(json.dumps(used), file=sys.stderr)
"""
ASKED = {
    "Images": ["64x3x224x224", "--training", "--optimizer", "SGD"],
    "Language": ["1x2048:int64", "--dtype", "bf16"],
}
LEAST_GB = {"Images": 0.3, "Language": 38.0}
"""What they need on a GPU."""


@pytest.mark.slow
def test_seconds_and_memory(tmp_path: Path) -> None:
    """One after the other in one process, the smaller first: to import PyTorch takes as long as to
    predict one of them."""
    (tmp_path / "models.py").write_text(MODELS)
    lines = []
    for name, given in ASKED.items():
        asked = ["predict", f"models.py:{name}", "--hardware", "mi300x", "--input", *given]
        lines.append([*asked, "--format", "json", "-o", f"{name}.json"])
    run = [sys.executable, "-c", RUN, json.dumps(lines)]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=True)
    taken = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    for name, used in zip(ASKED, taken, strict=True):
        assert used["s"] < MAX_IMPORTS * used["import_s"]
        assert used["gb"] < MAX_GB
        answer = json.loads((tmp_path / f"{name}.json").read_text())
        assert answer["results"][0]["memory"]["total_bytes"] / 1e9 > LEAST_GB[name]
        print(f"{name}: {used['s']:.1f} s, {used['gb']:.2f} GB")
