"""Measure a machine: microbenchmarks, traces with un-profiled step times.

Runs as `python -m perfmodel.collect` from a checkout or a copied folder, without installation:
it needs Python 3.10 or later, PyTorch 2.2 or later and NumPy, and imports nothing of the rest of
the package but its ground floor.
"""
