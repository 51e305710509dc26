"""Runs one trial on this host, watches it and classifies how it ended."""
