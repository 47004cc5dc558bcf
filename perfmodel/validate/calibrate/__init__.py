"""Fitting kernel models and devices to measurements."""
