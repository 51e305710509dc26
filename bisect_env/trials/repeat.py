"""Running a script's body several times within one process: how it is asked for, and what it notes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bisect_env.trials.phases import options_end

SOURCE = Path(__file__).parent / "harness" / "repeat.py"
NOTES = "bodies"


def repeated(arguments: Sequence[str], count: int, place: Path) -> tuple[list[str], Path]:
    """The interpreter's arguments under which it runs the body several times.

    Args:
        arguments: What follows the interpreter, of a command that can be repeated.
        count: How often.
        place: A directory that the trial may write to; the runner is put there.

    Returns:
        The arguments, and the file for `bodies_begun`.

    Raises:
        ValueError: This command cannot be repeated.
    """
    end = options_end(arguments)
    if end is None:
        raise ValueError("the body of this command cannot be run again: it is no Python script")
    folder = place / "repeat"
    folder.mkdir()
    runner, notes = folder / "repeat.py", folder / NOTES
    runner.write_bytes(SOURCE.read_bytes())
    notes.write_text(f"{0:9d}")
    return [*arguments[:end], str(runner), str(count), str(notes), *arguments[end:]], notes


def bodies_begun(notes: Path) -> int:
    """How many bodies were begun; 0 when the interpreter did not come so far."""
    try:
        return int(notes.read_text("utf-8"))
    except (OSError, ValueError):
        return 0
