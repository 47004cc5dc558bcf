"""Kineto and execution-trace files to columnar events, and how the two tie together."""
from perfmodel.trace.kineto import decode_kineto
