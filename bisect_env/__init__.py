"""bisect-env: which combination of versions first breaks this script, and is it a crash or a flake?"""

from importlib import metadata as _metadata

try:
    __version__ = _metadata.version("bisect-env")
except _metadata.PackageNotFoundError:
    # Run from the sources, without an installation.
    __version__ = "0+unknown"
