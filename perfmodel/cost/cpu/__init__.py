"""What CPU kernel models share: calibrated parameters, caches and memory, threads, page faults."""
