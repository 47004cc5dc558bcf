"""Models fitted to measurements: physics sets the scale, boosted trees the efficiency."""
