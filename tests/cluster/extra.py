"""Packages that an example needs and nothing else does, installed for one test."""

import subprocess
import sys
from pathlib import Path


def install(folder: Path, *requirements: str) -> str:
    """Install what is required, and that alone, into a folder.

    Returns:
        The folder, for PYTHONPATH.
    """
    uv = Path(sys.executable).with_name("uv")
    subprocess.run(
        [uv, "pip", "install", "--quiet", "--python", sys.executable, "--target", folder, *requirements],
        check=True,
        timeout=240,
    )
    return str(folder)
