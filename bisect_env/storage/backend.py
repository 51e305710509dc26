"""What both back ends have in common: an open database, and the words for its two kinds of transactions."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import Engine

BUSY_SECONDS = 60.0
"""How long a writer waits for other writers; each holds the lock for milliseconds."""

READING = "bisect_env_reading"
"""Execution option of connections that only read: they take no write lock."""

ENGINE_OPTIONS: dict[str, Any] = {
    "json_serializer": partial(json.dumps, ensure_ascii=False, allow_nan=False),
}


@dataclass(frozen=True, slots=True)
class Database:
    """An open database.

    Attributes:
        engine: Its transactions write, and hold the write lock from their beginning.
        reader: The same pool; its transactions read one state and block nobody.
        shown: The database as messages name it, without a password.
        folder: Where large logs lie as files; None keeps them in the database.
    """

    engine: Engine
    reader: Engine
    shown: str
    folder: Path | None = None

    @classmethod
    def of(cls, engine: Engine, shown: str, folder: Path | None = None) -> Database:
        """With the reader that belongs to an engine."""
        return cls(engine, engine.execution_options(**{READING: True}), shown, folder)
