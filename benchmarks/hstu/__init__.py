"""A sequential recommender (HSTU) to measure: its model, its kernels, what is predicted of both.

`python -m benchmarks.hstu` is the collector with this model and this family of kernels.
"""
