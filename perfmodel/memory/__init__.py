"""Bytes per tier and rank, and what fits."""
