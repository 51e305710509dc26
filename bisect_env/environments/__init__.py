"""Environments: index look-ups, solving, lock files, and building prefixes on this host."""
