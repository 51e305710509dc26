"""The types of text and dates in a matrix file, each with its check and remedy. Pure.

The loader hands every scalar over as the text that stands in the file (`3.10` stays `3.10`), so each type
here reads text; numbers and booleans are read by pydantic itself.
"""

from __future__ import annotations

import re
import signal
import unicodedata
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Any
from urllib.parse import SplitResult, urlsplit

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from pydantic import AfterValidator, BeforeValidator, ByteSize, Field, WithJsonSchema

# --------------------------------------------------------------------------------------------------
# Days and instants of `exclude_newer` and of date axes. Pure; nothing here reads a clock.

_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
_STEP = re.compile(r"(\d+)\s*(d|w|days?|weeks?)?")

MAX_DATES = 10_000
"""Limit of a range of days."""


def cutoff(text: str) -> datetime:
    """Return the first instant that is too new, in UTC.

    A day includes all uploads of that day (`2020-09-22`, as in uv); an instant such as
    `2020-09-22T12:00:00Z` is itself the limit. An instant without an offset is UTC.

    Raises:
        ValueError: The text is neither a day nor an instant; the message names a remedy.
    """
    try:
        if _DAY.fullmatch(text):
            day = date.fromisoformat(text)
            return datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(days=1)
        instant = datetime.fromisoformat(text)
        utc = instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant.astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text!r} is not a date; write a day like 2026-01-31 or an instant like 2026-01-31T12:00:00Z"
        ) from None
    return utc


def parse_day(text: str) -> date:
    """Read a day such as `2026-01-31`.

    Raises:
        ValueError: The text is no day; the message names a remedy.
    """
    try:
        if _DAY.fullmatch(text):
            return date.fromisoformat(text)
    except ValueError:
        pass
    raise ValueError(f"{text!r} is not a day; write one like 2026-01-31")


def parse_step(text: str) -> int:
    """Read the step of a date range, in days: `3`, `1d`, `2w`.

    Raises:
        ValueError: The text is no step; the message names a remedy.
    """
    match = _STEP.fullmatch(text.strip())
    if match is None or int(match[1]) < 1:
        raise ValueError(f"{text!r} is not a step of days; write one like 1d or 2w")
    return int(match[1]) * (7 if (match[2] or "d").startswith("w") else 1)


def days_between(first: str, last: str, step: str) -> tuple[str, ...]:
    """Return every `step`-th day from `first` on; `last` is always included.

    The last day is included even if the step would miss it because the user saw the failure on that day.

    Raises:
        ValueError: The days cannot be read, are in the wrong order, or are too many.
    """
    start, end, width = parse_day(first), parse_day(last), parse_step(step)
    if end < start:
        raise ValueError(f"the range ends ({last}) before it begins ({first}); swap `from` and `to`")
    count = (end - start).days // width + 1
    if count > MAX_DATES:
        raise ValueError(f"the range has {count} dates, more than {MAX_DATES}; use a larger step")
    days = [start + timedelta(days=width * i) for i in range(count)]
    if days[-1] != end:
        days.append(end)
    return tuple(day.isoformat() for day in days)


# --------------------------------------------------------------------------------------------------
# The kinds of text that a matrix file is made of, each with its check and its remedy.

_SECONDS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION_PIECE = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|)\s*")
_SLUG = r"[a-z0-9][a-z0-9_-]{0,99}"

MAX_SECONDS = 30 * 86400.0


def parse_duration(text: str) -> float:
    """Read seconds from `90`, `90s`, `2m`, `1h30m`.

    Raises:
        ValueError: The text is no duration, or not above zero, or above 30 days; the message names a remedy.
    """
    pieces = _DURATION_PIECE.findall(text.strip())
    whole = "".join(match.group(0) for match in _DURATION_PIECE.finditer(text.strip()))
    if not pieces or whole != text.strip() or (len(pieces) > 1 and any(not unit for _, unit in pieces)):
        raise ValueError(f"{text!r} is not a duration; write seconds, or a text like 90s, 2m or 1h30m")
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in pieces)
    if not 0 < seconds <= MAX_SECONDS:
        raise ValueError(f"{text!r} is no usable duration; choose one above 0 and up to 30 days")
    return seconds


def _duration(value: Any) -> Any:
    if isinstance(value, str):
        return parse_duration(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return parse_duration(repr(value))
    return value


def _not_blank(value: str) -> str:
    if not value.strip():
        raise ValueError("the text is empty; write something or remove the key")
    if "\0" in value:
        raise ValueError("the text holds a NUL character; remove it")
    return value


def _one_line(value: str) -> str:
    if any(unicodedata.category(character) in ("Cc", "Zl", "Zp") for character in value):
        raise ValueError(f"{value!r} holds a line break or another control character; remove it")
    return value


def _like(pattern: str, words: str) -> AfterValidator:
    """Return a validator that requires the whole text to match; `words` complete its "... is not" message."""

    def check(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise ValueError(f"{value!r} is not {words}")
        return value

    return AfterValidator(check)


def _readable(read: Callable[[str], Any]) -> AfterValidator:
    """Return a validator that keeps a text which a function can read."""

    def check(value: str) -> str:
        read(value)
        return value

    return AfterValidator(check)


def _is_free(value: str) -> str:
    if value.upper().startswith("BISECT_ENV_"):
        raise ValueError(f"{value!r} is taken: BISECT_ENV_* holds the axes; choose another name")
    return value


def _no_login(url: SplitResult, what: str, remedy: str, *, may_name_user: bool = False) -> None:
    """Refuse an address with a password, and one with a user name that may be a token."""
    if url.password or (url.username and not may_name_user):
        raise ValueError(
            f"the address of the {what} holds a user name or password, and this file is shared; "
            f"remove it and put it into {remedy}"
        )


def _requirement(value: str) -> str:
    try:
        requirement = Requirement(value)
    except (InvalidRequirement, RecursionError):
        raise ValueError(
            f"{value[:200]!r} is not a requirement; write one like 'numpy<2' or 'scipy==1.13.1'"
        ) from None
    if requirement.url:
        raise ValueError(
            f"{value!r} points to a URL, which no date or hash holds still; name a version from an index"
        )
    return value


def _channel(value: str) -> str:
    # It stands in lock files and in command lines: nothing that means something to a shell.
    if not re.fullmatch(r"[\w./][\w.~:/@%+=&?#,!\[\]-]*", value):
        raise ValueError(f"{value!r} is not a channel; write a name, an address or a folder")
    if "://" in value:
        url, files = urlsplit(value), "~/.condarc or rattler's authentication file"
        _no_login(url, "channel", files)
        if re.search(r"/t/[^/]+/", url.path):
            raise ValueError(
                f"the address of the channel holds a token, and this file is shared; use {files}"
            )
    return value


def _regex(value: str) -> str:
    try:
        re.compile(value)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"{value!r} is not a regular expression ({error}); correct it") from None
    return value


def _index_url(value: str) -> str:
    try:
        url = urlsplit(value)
        host = url.hostname
        _ = url.port  # of one above 65535 it raises
    except ValueError:
        url, host = urlsplit(""), None
    is_address = url.scheme == "file" or (url.scheme in {"http", "https"} and host)
    # `urlsplit` takes line breaks out in silence, and a shell knows what `;` means: they have no place here.
    if not is_address or not re.fullmatch(r"[\w.~:/?#\[\]@!&,=%+-]+", value):
        raise ValueError(f"{value!r} is not the address of an index; write one that begins with https://")
    _no_login(url, "index", "~/.netrc or a keyring")
    return value


def _find_links(value: str) -> str:
    if "://" in value:
        return _index_url(value)
    if re.search(r"[\x00-\x1f\x7f,]", value):
        raise ValueError(f"{value!r} is not a folder; write a path without commas, or an address")
    return value


def _repository(value: str) -> str:
    # Nothing that git would take for an option, or for a transport that runs a program.
    if value.startswith("-") or "::" in value or any(ord(c) < 32 or c == "\x7f" for c in value):
        raise ValueError(f"{value!r} is no repository; write an address that begins with https://, or a path")
    if "://" in value:
        url = urlsplit(value)
        if url.scheme not in {"https", "http", "ssh", "git", "file"}:
            raise ValueError(f"git is not asked by {url.scheme}; write an address that begins with https://")
        files = "~/.netrc or a credential helper of git"
        _no_login(url, "repository", files, may_name_user=url.scheme not in {"http", "https"})
    return value


def _revision(value: str) -> str:
    colon = "" if re.fullmatch(r"\d{4}-\d{2}-\d{2}T\S+", value) else ":"
    if value.startswith("-") or re.search(rf"[\x00-\x20\x7f{colon}?*\[\\]|\.\.|@\{{", value):
        raise ValueError(f"{value!r} names no commit; write a tag, a branch, a hash or a day like 2026-01-31")
    return value


def _subdirectory(value: str) -> str:
    parts = value.strip("/").split("/")
    if value.startswith("/") or ".." in parts or not value.isprintable() or "\\" in value:
        raise ValueError(f"{value!r} is no directory within the repository; write one like 'python/core'")
    return "/".join(part for part in parts if part not in ("", "."))


def _enough_memory(value: ByteSize) -> ByteSize:
    if value < 1_000_000:
        raise ValueError(f"{int(value)} bytes are less than any build needs; write a size like 8GB")
    return value


def _step_of_days(value: Any) -> Any:
    text = str(value) if isinstance(value, int) else value
    if isinstance(text, str):
        parse_step(text)
    return text


def _signal(value: Any) -> Any:
    """Read a signal from its name (`SIGSEGV`, `segv`) or number."""
    if not isinstance(value, str | int):
        return value
    text = str(value).upper()
    try:
        return int(
            signal.Signals(int(text)) if text.isdigit() else signal.Signals[f"SIG{text.removeprefix('SIG')}"]
        )
    except (KeyError, ValueError):
        raise ValueError(f"{str(value)!r} is not a signal; write one like SIGSEGV or 11") from None


def package_of(requirement: str) -> str:
    """Return the normalised package name of a requirement or conda spec that was checked before."""
    match = re.match(r"\s*([A-Za-z0-9._-]+)", requirement)
    return str(canonicalize_name(match[1])) if match else ""


_scalar_json = WithJsonSchema({"type": ["string", "number"]})

Text = Annotated[str, AfterValidator(_not_blank)]
Value = Annotated[str, AfterValidator(_not_blank), WithJsonSchema({"type": ["string", "number", "boolean"]})]
VersionText = Annotated[str, AfterValidator(_not_blank), AfterValidator(_one_line), _scalar_json]
Slug = Annotated[
    str,
    _like(_SLUG, "usable as a name; use small letters, digits, - and _ (100 at most)"),
    WithJsonSchema({"type": "string", "pattern": _SLUG}),
]
AxisName = Annotated[
    str,
    _like(
        r"[a-z][a-z0-9_-]{0,63}",
        "usable as the name of an axis; begin with a small letter, go on with small letters, digits, - and _ "
        "(64 at most)",
    ),
]
EnvName = Annotated[
    str,
    _like(
        r"[A-Za-z_][A-Za-z0-9_]*",
        "the name of an environment variable; use letters, digits and _, no digit first",
    ),
    AfterValidator(_is_free),
]
PypiRequirement = Annotated[str, AfterValidator(_one_line), AfterValidator(_requirement)]
CondaSpec = Annotated[
    str,
    AfterValidator(_one_line),
    _like(
        r"[A-Za-z0-9_.\-]+(\s*[=<>!~ ].*)?",
        "a conda spec; write one like 'numpy 2.1.*' or 'cuda-version=12.8'",
    ),
]
BuildPattern = Annotated[
    str,
    _like(r"[A-Za-z0-9_.+*]+", "a pattern for build strings; write one like 'cuda*' or '*_cp312'"),
]
VirtualPackage = Annotated[str, _like(r"__[a-z0-9_]+", "a virtual package; write one like __cuda or __glibc")]
ChannelName = Annotated[str, AfterValidator(_not_blank), AfterValidator(_channel)]
PackageName = Annotated[
    str,
    _like(
        r"[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9_])?",
        "the name of a package; write the name alone, without a version",
    ),
]
Regex = Annotated[str, AfterValidator(_regex)]
ImageName = Annotated[
    str,
    AfterValidator(_not_blank),
    # As `docker run` takes it, where a leading hyphen would be an option.
    _like(r"[A-Za-z0-9{][A-Za-z0-9._:/@{}-]*", "the name of an image; write one like python:3.12-slim"),
]
IndexUrl = Annotated[str, AfterValidator(_index_url)]
IndexName = Annotated[
    str,
    _like(
        r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?",
        "the name of an index; use letters, digits, '.', '_' and '-'",
    ),
]
FindLinks = Annotated[str, AfterValidator(_not_blank), AfterValidator(_find_links)]
DateText = Annotated[str, _readable(cutoff)]
DayText = Annotated[str, _readable(parse_day)]
StepText = Annotated[str, BeforeValidator(_step_of_days), WithJsonSchema({"type": ["string", "integer"]})]
Seconds = Annotated[
    float,
    BeforeValidator(_duration),
    WithJsonSchema({"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "string"}]}),
]
SignalNumber = Annotated[
    int,
    BeforeValidator(_signal),
    WithJsonSchema({"type": ["string", "integer"], "examples": ["SIGSEGV", 11]}),
]
RepositoryName = Annotated[str, AfterValidator(_not_blank), AfterValidator(_repository)]
Revision = Annotated[
    str, AfterValidator(_not_blank), AfterValidator(_revision), WithJsonSchema({"type": ["string", "number"]})
]
Subdirectory = Annotated[str, AfterValidator(_subdirectory)]
Bytes = Annotated[ByteSize, AfterValidator(_enough_memory), WithJsonSchema({"type": ["integer", "string"]})]
ExitStatus = Annotated[int, Field(ge=1, le=255)]
