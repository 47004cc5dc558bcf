"""Published figures, predicted again: of co-designs (`designs.py`), and of MLPerf (`mlperf.py`)."""
