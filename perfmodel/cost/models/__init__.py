"""The kernel models, one file each; every file here registers its own."""
