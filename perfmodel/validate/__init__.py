"""Fits of models to measurements, evaluation against measurements, checks for CI."""
