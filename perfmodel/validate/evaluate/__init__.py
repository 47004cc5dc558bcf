"""Errors of predictions against what was measured, and a baseline that holds them."""
