"""Commands in a prefix that is made in one place and used in another."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import secrets
from collections.abc import Iterable
from pathlib import Path

_LONGEST_LINE = 4096


def move(place: Path, final: Path) -> None:
    """Let commands that name the interpreter in one directory name the one in another.

    uv makes commands relocatable in virtual environments alone; in a conda prefix they begin with
    `#!<place>/bin/python`. Each is written anew beside itself, for it may be a hardlink, and the lists of
    what packages hold are told of it.

    Args:
        place: Where the prefix is.
        final: Where it will be.
    """
    changed = {}
    for path in sorted((place / "bin").iterdir()):
        if path.is_file() and not path.is_symlink() and (text := _moved(path, place, final)) is not None:
            _write(path, text, path.stat().st_mode & 0o7777)
            changed[path] = text
    if changed:
        for record in place.glob("lib/python*/site-packages/*.dist-info/RECORD"):
            _state(record, changed)


def _moved(path: Path, place: Path, final: Path) -> bytes | None:
    here = os.fsencode(str(place / "bin")) + b"/"
    there = os.fsencode(str(final / "bin")) + b"/"
    with path.open("rb") as stream:
        first = stream.readline(_LONGEST_LINE)
        if not first.startswith(b"#!"):
            return None
        # Of a path that is too long for a shebang line there is a shell's `exec` in the second one.
        head = first + stream.readline(_LONGEST_LINE)
        return head.replace(here, there) + stream.read() if here in head else None


def _state(record: Path, changed: dict[Path, bytes]) -> None:
    site = record.parent.parent
    with record.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.reader(stream))
    hit = False
    for row in rows:
        path = Path(os.path.normpath(site / row[0])) if row else site
        if path in changed:
            digest = base64.urlsafe_b64encode(hashlib.sha256(changed[path]).digest()).rstrip(b"=").decode()
            row[1:] = [f"sha256={digest}", str(len(changed[path]))]
            hit = True
    if hit:
        _write(record, _csv(rows), record.stat().st_mode & 0o7777)


def _csv(rows: Iterable[list[str]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def _write(path: Path, content: bytes, mode: int) -> None:
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    beside.write_bytes(content)
    beside.chmod(mode)
    beside.replace(path)
