"""Measurements of this project against its peers; not part of the installed package."""
