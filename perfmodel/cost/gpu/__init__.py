"""The physics that GPU kernel models share: rates, caches, launch floors, tiles and waves."""
