"""bisect-env: which combination of versions first breaks this script, and is it a crash or a flake?"""

__version__ = "0.1.0"
"""Stands here alone: the metadata of the package are made from it, and it needs no installation."""
