"""What every room stands on: files, schemas, registries, units, frames, lazy imports."""
