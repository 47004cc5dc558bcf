"""Published co-designs, one file each: edits of where tables lie and how a step is laid out."""

from perfmodel.designs.default import deployment_of
from perfmodel.designs.deployment import DESIGNS, Deployment, Design, Phase

__all__ = ["DESIGNS", "Deployment", "Design", "Phase", "deployment_of"]
