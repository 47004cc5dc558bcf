"""Published co-designs, one file each: edits of where tables are and how a step is laid out."""

from __future__ import annotations

from perfmodel.designs.deployment import DESIGNS, Deployment, Design, Phase, deployment_of

__all__ = [
    "DESIGNS",
    "Deployment",
    "Design",
    "Phase",
    "deployment_of",
]
