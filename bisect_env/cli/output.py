"""Where a command's data goes."""

from __future__ import annotations

import secrets
import sys
from pathlib import Path

from bisect_env.errors import InfrastructureError, UsageError


def deliver(text: str, output: Path | None) -> None:
    """Write text to a file, which then has all of it or is as before, or to stdout.

    Args:
        text: With its final newline.
        output: The file; None, or `-`, for stdout.

    Raises:
        UsageError: The file's directory is not there, or the path is a directory.
        InfrastructureError: It cannot be written.
    """
    if output is None or str(output) == "-":
        # What is printed may hold any character, and stdout's encoding is the locale's.
        sys.stdout.write(text.encode(sys.stdout.encoding, "replace").decode(sys.stdout.encoding))
        sys.stdout.flush()
        return
    if output.is_dir():
        raise UsageError(f"{output} is a directory", remedy="name a file in it with `--output`")
    try:
        if output.exists() and not output.is_file():
            # A pipe or a device cannot be replaced.
            output.write_text(text, encoding="utf-8", errors="replace")
            return
        target = output.resolve()
        beside = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
        try:
            beside.write_text(text, encoding="utf-8", errors="replace")
            if target.exists():
                beside.chmod(target.stat().st_mode & 0o777)
            beside.replace(target)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        if not output.parent.is_dir():
            raise UsageError(
                f"there is no directory {output.parent}", remedy="make it, or name another file"
            ) from error
        raise InfrastructureError(
            f"{output} cannot be written: {error.strerror or error}",
            remedy="name another file with `--output`",
        ) from error
