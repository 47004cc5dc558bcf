"""What one kernel, copy or lookup takes on one device: models behind one contract."""
