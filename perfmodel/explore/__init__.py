"""Sweeps: thousands of settings of hardware, workloads and designs, and what they show."""
