"""Where the time of a trace went, by rank, step, operator and kernel."""
