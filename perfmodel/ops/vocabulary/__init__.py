"""The ops of the measurement table, one file per family; every file here registers its own."""
