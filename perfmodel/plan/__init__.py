"""Sharding plans: where each table lies so that a step takes least time, and why."""
