"""Collective models; each file registers what it holds."""
