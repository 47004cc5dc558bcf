"""Published figures, recomputed: a module per source, run by `perfmodel evaluate designs`."""
