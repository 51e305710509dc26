"""The pydantic types, with their checks, of single values in a matrix file (names, versions, dates). Pure.

The YAML parser returns every value as the text in the file (`3.10` stays `3.10`), so these types validate
text. pydantic itself converts text to numbers and booleans. Messages about invalid values include a remedy.
"""

from __future__ import annotations

import re
import signal
import string
import unicodedata
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Any
from urllib.parse import SplitResult, urlsplit

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from pydantic import AfterValidator, BeforeValidator, ByteSize, Field, WithJsonSchema

# --------------------------------------------------------------------------------------------------
# Days and instants of `exclude_newer` and of date axes. Pure: the current time is not used.

_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
_INSTANT = re.compile(r"\d{4}-\d{2}-\d{2}[T ].+")
_STEP = re.compile(r"(\d{1,9})\s*(d|w|days?|weeks?)?")

MAX_DATES = 10_000
"""Maximum number of days in a date range."""


def cutoff(text: str) -> datetime:
    """Convert a value of `exclude_newer` to a time in UTC. Packages uploaded at or after it are excluded.

    For a day such as `2020-09-22`, the limit is the end of that day, as in uv. An instant such as
    `2020-09-22T12:00:00Z` is itself the limit; without an offset it is in UTC.

    Raises:
        ValueError: The text is neither a day nor an instant; the message names a remedy.
    """
    try:
        if _DAY.fullmatch(text):
            day = date.fromisoformat(text)
            return datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(days=1)
        # `fromisoformat` also reads days such as `20260131` and `2026-W05-6`, as the beginning of the day.
        instant = datetime.fromisoformat(text if _INSTANT.fullmatch(text) else "")
        utc = instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"{text!r} is too early or too late; write a day like 2026-01-31") from None
    except ValueError:
        raise ValueError(
            f"{text!r} is not a date; write a day like 2026-01-31 or an instant like 2026-01-31T12:00:00Z"
        ) from None
    return utc


def parse_day(text: str) -> date:
    """Parse a day such as `2026-01-31`.

    Raises:
        ValueError: The text is no day; the message names a remedy.
    """
    try:
        day = date.fromisoformat(text if _DAY.fullmatch(text) else "")
    except ValueError:
        raise ValueError(f"{text!r} is not a day; write one like 2026-01-31") from None
    cutoff(text)
    return day


def parse_step(text: str) -> int:
    """Parse the step of a date range, such as `3`, `1d` or `2w`, and return the number of days.

    Raises:
        ValueError: The text is not a step; the message names a remedy.
    """
    match = _STEP.fullmatch(text.strip())
    if match is None or int(match[1]) < 1:
        raise ValueError(f"{text[:80]!r} is not a step of days; write one like 1d or 2w")
    return int(match[1]) * (7 if (match[2] or "d").startswith("w") else 1)


def days_between(first: str, last: str, step: str) -> tuple[str, ...]:
    """Return the days from `first` to `last` at intervals of `step`, each as text like `2026-01-31`.

    `last` is always included, even if the step would miss it, because the user may have seen the failure on
    that day.

    Raises:
        ValueError: An argument is invalid, the days are in the wrong order, or there are over `MAX_DATES`.
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
# The types of values in a matrix file, with their checks. A message has the problem and a remedy.

_SECONDS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_LONG_NUMBER = re.compile(r"\d{1000}")
_DURATION_PIECE = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|)\s*")
_SLUG = r"[a-z0-9][a-z0-9_-]{0,99}"

MAX_SECONDS = 30 * 86400.0


def parse_duration(text: str) -> float:
    """Parse a duration such as `90`, `90s`, `2m` or `1h30m`, and return it in seconds.

    Raises:
        ValueError: The text is not a duration, or not above zero and up to 30 days; the message names a
            remedy.
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
    return parse_duration(value) if isinstance(value, str) else value


def _not_blank(value: str) -> str:
    if not value.strip():
        raise ValueError("the text is empty; write something or remove the key")
    return _no_nul(value)


def _no_nul(value: str) -> str:
    if "\0" in value:
        raise ValueError("the text holds a NUL character; remove it")
    return value


def _one_line(value: str) -> str:
    if any(unicodedata.category(character) in ("Cc", "Zl", "Zp") for character in value):
        raise ValueError(f"{value!r} holds a line break or another control character; remove it")
    return value


def _like(pattern: str, words: str) -> AfterValidator:
    """Return a validator that rejects a text unless all of it matches a regular expression.

    Args:
        pattern: Regular expression.
        words: End of the message, after "... is not"; it names what is expected and the remedy.
    """

    def check(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise ValueError(f"{value!r} is not {words}")
        return value

    return AfterValidator(check)


def _readable(read: Callable[[str], Any]) -> AfterValidator:
    """Return a validator that rejects each text for which the function `read` raises an error.

    Accepted texts are left unchanged.
    """

    def check(value: str) -> str:
        read(value)
        return value

    return AfterValidator(check)


def _is_free(value: str) -> str:
    if value.upper().startswith("BISECT_ENV_"):
        raise ValueError(f"{value!r} is taken: BISECT_ENV_* holds the axes; choose another name")
    return value


def _axis_is_free(value: str) -> str:
    if re.fullmatch(r"harness[-_].*|trial[-_]id", value):
        raise ValueError(
            f"{value!r} is taken: its variable holds a setting of every trial; choose another name"
        )
    return value


def _split(value: str) -> SplitResult:
    """Split an address into its parts; raise ValueError with a remedy if it is invalid, as `https://[x/y`."""
    try:
        return urlsplit(value)
    except ValueError as error:
        raise ValueError(f"{value!r} is not an address ({error}); correct it") from None


def _no_login(url: SplitResult, what: str, remedy: str, *, may_name_user: bool = False) -> None:
    """Raise ValueError if an address contains a password or a user name.

    A user name may be a token; it is accepted only if `may_name_user` is true and there is no password.

    Args:
        url: Parsed address.
        what: What the address belongs to, for the message.
        remedy: Where the user should store the password instead, for the message.
        may_name_user: Whether a user name without a password is allowed.
    """
    if url.password or (url.username and not may_name_user):
        raise ValueError(
            f"the address of the {what} holds a user name or password, and this file is shared; "
            f"remove it and put it into {remedy}"
        )


def parse_requirement(text: str) -> Requirement:
    """Parse a requirement such as `torch>=2.5,<2.9`.

    Raises:
        ValueError: The text is not a requirement, or has a number that Python does not read; the message
            names a remedy.
    """
    # Python refuses to convert such a number. Some versions of packaging do it at once, others later.
    if _LONG_NUMBER.search(text):
        raise ValueError(f"{text[:40]!r}… has a number of many digits, and a range may have 1000; shorten it")
    try:
        return Requirement(text)
    except (InvalidRequirement, RecursionError):
        raise ValueError(
            f"{text[:200]!r} is no package with versions; write it like 'orjson', 'numpy<2' or "
            "'torch>=2.5,<2.9', in quotes"
        ) from None


def _requirement(value: str) -> str:
    if parse_requirement(value).url:
        raise ValueError(
            f"{value!r} points to a URL, which no date or hash holds still; name a version from an index"
        )
    return value


def _channel(value: str) -> str:
    # The name is written into lock files and command lines, so characters special to a shell are refused.
    if not re.fullmatch(r"[\w./][\w.~:/@%+=&?#,!\[\]-]*", value):
        raise ValueError(f"{value!r} is not a channel; write a name, an address or a folder")
    if "://" in value:
        url, files = _split(value), "~/.condarc or rattler's authentication file"
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
        _ = url.port  # raises ValueError if the port is above 65535
    except ValueError:
        url, host = urlsplit(""), None
    is_address = url.scheme == "file" or (url.scheme in {"http", "https"} and host)
    # `urlsplit` silently removes line breaks, and `;` is special to a shell, so both are refused.
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
    # Refuse text that git would interpret as an option, or as a transport that runs a program.
    if value.startswith("-") or "::" in value or any(ord(c) < 32 or c == "\x7f" for c in value):
        raise ValueError(f"{value!r} is no repository; write an address that begins with https://, or a path")
    if "://" in value:
        url = _split(value)
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


def _signal(value: Any) -> Any:
    """Convert the name of a signal, such as `SIGSEGV` or `segv`, to the number of the signal.

    A number is checked and returned as `int`. Values that are neither text nor numbers are returned
    unchanged. Raise ValueError if there is no such signal.
    """
    if not isinstance(value, str | int):
        return value
    text = str(value).upper()
    try:
        return int(
            signal.Signals(int(text)) if text.isdigit() else signal.Signals[f"SIG{text.removeprefix('SIG')}"]
        )
    except (KeyError, ValueError):
        raise ValueError(f"{str(value)!r} is not a signal; write one like SIGSEGV or 11") from None


def placeholders(word: str) -> tuple[str, ...]:
    """Return the names between braces in a word of a command: `("cuda",)` for `image-{cuda}`.

    Raises:
        ValueError: A brace has no counterpart, or a placeholder is not a plain name; the message names a
            remedy.
    """
    refusal = f"{word!r} has a brace that is no placeholder; write {{axis}}, or {{{{ and }}}} for braces"
    try:
        fields = [field[1:] for field in string.Formatter().parse(word) if field[1] is not None]
    except ValueError:
        raise ValueError(refusal) from None
    names = []
    for name, spec, conversion in fields:
        if not name or spec or conversion:
            raise ValueError(refusal)
        names.append(name)
    return tuple(names)


def package_of(requirement: str) -> str:
    """Return the normalised name of the package in a requirement or conda spec: `numpy` for `NumPy>=2`."""
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
    AfterValidator(_axis_is_free),
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
CommandWord = Annotated[str, AfterValidator(_no_nul), _readable(placeholders)]
ImageName = Annotated[
    str,
    AfterValidator(_not_blank),
    # The name becomes an argument of `docker run`, where a leading hyphen would make it an option.
    _like(r"[A-Za-z0-9{][A-Za-z0-9._:/@{}-]*", "the name of an image; write one like python:3.12-slim"),
    _readable(placeholders),
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
StepText = Annotated[str, _readable(parse_step), WithJsonSchema({"type": ["string", "integer"]})]
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
