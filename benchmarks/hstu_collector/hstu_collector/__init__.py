"""A plug-in of perfmodel's collector: kernels of sequential recommenders (HSTU) and their steps."""
