"""Removes passwords and tokens from texts that are stored or shown, and passes on those that builds need.

Passwords occur in unexpected places: in an index address that a solver quotes, in the traceback of a
download, in the output of a script, in `trial.env` of a matrix. They are removed when a text leaves the
process, that is, before it is written to the database, to stderr or to the event stream for other programs.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from bisect_env.errors import InfrastructureError

MASK = "***"

# Lengths are bounded: a log of a megabyte without a space must not take minutes.
_USER = r"""[^\s/:@"'<>\[\]]{0,256}"""
# A text may be JSON, such as a stored signature. If a password ended with the backslash of an escaped quote,
# the text without the password would not be JSON. Two backslashes escape no quote.
_UNLESS_QUOTE = r"""\\\\|(?!\\["'])"""
# An e-mail address as user name. A colon after it may also begin a port or, in `ssh://git@host:path`, a path.
_MAIL_USER = r"""[^\s:/?#@"'<>\[\]]{0,256}@[^\s:/?#"'<>\[\]]{0,256}:(?!\d{1,5}(?:[/\s?#]|$))"""
_PASSWORDS = (
    # `://user@example.org:password@`: the last `@` before a slash ends the password. In a web address, a
    # text before the slash that is no port number is treated as the start of a password with a slash.
    (re.compile(rf"""(://{_MAIL_USER})[^\s/"'<>]{{0,512}}@"""), rf"\1{MASK}@"),
    (re.compile(rf"""(https?://{_MAIL_USER})[^\s"'<>@]{{0,512}}@"""), rf"\1{MASK}@"),
    # `://user:password@`. A slash ends the host part of a URL. But if the text before the slash is not a port
    # number, it is treated as a password that contains a slash.
    (
        re.compile(
            rf"""(://{_USER}:)(?!\d{{1,5}}(?:[/\s?#]|$))"""
            r"""(?:[^\s/"'<>]{0,512}|[^\s"'<>@]{0,512})@"""
        ),
        rf"\1{MASK}@",
    ),
    # `https://token@`: a user name without a password in a web address is treated as a token.
    (re.compile(r"""(https?://)[^\s/:@"'<>\[\]]{1,256}@"""), rf"\1{MASK}@"),
    # libpq's `password=`, and parameters of web addresses.
    (re.compile(rf"""(password=)(?:{_UNLESS_QUOTE}[^&\s"'<>])+""", re.IGNORECASE), rf"\1{MASK}"),
    (re.compile(rf"""([?&;]([\w.-]{{1,64}})=)(?:{_UNLESS_QUOTE}[^&\s"'<>#])+"""), None),
    (
        re.compile(
            rf"""(authorization["']?\s?[:=]\s?["']?(?:basic|bearer|token) )(?:{_UNLESS_QUOTE}[^\s"'])+""",
            re.IGNORECASE,
        ),
        rf"\1{MASK}",
    ),
)
# Matches everything from `://user:` to the last `@` of a line.
_WIDELY = re.compile(r"(://[^:/@\s]*:)[^@\n]*@")
_USER_INSIDE = re.compile(r"://[^/@\s]+@")
_CHANNEL_TOKEN = re.compile(r"/t/[A-Za-z0-9-]+(?=/|$)")
_HINTS = ("://", "?", "assword=", "ASSWORD=", "uthorization", "UTHORIZATION")

_SECRET_PARAMETER = re.compile(
    r"passw|token|secret|signature|credential|api[_-]?key|access[_-]?key|^(sig|key|auth|pwd)$", re.IGNORECASE
)
_SECRET_VARIABLE = re.compile(
    r"PASS|TOKEN|SECRET|KEY|CRED|AUTH|COOKIE|SESSION|PRIVATE|(?:^|_)PAT(?:_|$)|_PWD", re.IGNORECASE
)
# Matches the start of tokens of GitHub, GitLab, Hugging Face, PyPI, Slack, Amazon and OpenAI, and JSON web
# tokens (JWT).
_TOKEN_VALUE = re.compile(
    r"gh[a-z]_\w{20}|github_pat_\w{20}|glpat-[\w-]{20}|hf_\w{20}|pypi-[\w-]{20}|xox[a-z]-[\w-]{10}"
    r"|AKIA[A-Z0-9]{16}|sk-[\w-]{20}|eyJ[\w-]{10,}\.eyJ"
)
# Variables that configure libraries. Their values are stored because they are needed to reproduce a crash.
_TUNING = re.compile(
    r"(PYTHON|OMP_|KMP_|GOMP_|MKL_|OPENBLAS_|BLIS_|NUMEXPR_|VECLIB_|NCCL_|UCX_|CUDA_|CUBLAS_|CUDNN_|NVIDIA_"
    r"|TORCH|PYTORCH_|TF_|XLA_|JAX_|CUML_|CUDF_|RAPIDS_|RMM_|CUPY_|NUMBA_|DASK_|OPENCV_|QT_|SDL_|LD_|MALLOC_"
    r"|GLIBC_|LC_|ORJSON_)\w*|LANG|LANGUAGE|TZ|DISPLAY|TERM|HOME|PATH|TMPDIR"
)
_SWITCH = re.compile(r"\d|true|false|yes|no|on|off|none|null|", re.IGNORECASE)
_PLAIN_VALUE = re.compile(r"[+-]?\d{1,9}(\.\d{1,9})?|true|false|yes|no|on|off|none|null|", re.IGNORECASE)


_PROXIES = ("http_proxy", "https_proxy", "ftp_proxy", "all_proxy")
_PROXY_LOGIN = re.compile(r"^((?:[\w+.-]+:/+)?).*@", re.DOTALL)
PASSED = frozenset(
    {
        # User and home directory: scripts read data sets and model caches below HOME.
        *("HOME", "USER", "LOGNAME", "SHELL", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"),
        *("LANG", "LANGUAGE", "TZ"),
        *("LC_ALL", "LC_COLLATE", "LC_CTYPE", "LC_MESSAGES", "LC_MONETARY", "LC_NUMERIC", "LC_TIME"),
        *("LC_ADDRESS", "LC_IDENTIFICATION", "LC_MEASUREMENT", "LC_NAME", "LC_PAPER", "LC_TELEPHONE"),
        # Certificates and proxies of this host.
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
        *("http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy"),
        *("HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "ALL_PROXY", "NO_PROXY"),
    }
)
"""Names of the environment variables that scripts and builds inherit."""


def passed_on(outer: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that trials and source builds may see.

    Args:
        outer: The environment of this process.
    """
    # Look names up: iterating over `os.environ` decodes every name, for each trial again.
    env = {name: outer[name] for name in PASSED if name in outer}
    if not {"LANG", "LC_ALL", "LC_CTYPE"} & env.keys():
        env["LANG"] = "C.UTF-8"
    return env


def without_proxy_logins(env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables with user names and passwords removed from proxy addresses."""
    return {
        name: _PROXY_LOGIN.sub(r"\1", value) if name.lower() in _PROXIES else value
        for name, value in env.items()
    }


def is_secret_parameter(name: str) -> bool:
    """Return whether the name of a URL parameter suggests a secret."""
    return _SECRET_PARAMETER.search(name) is not None


def may_be_stored(variable: str, value: str) -> bool:
    """Return whether the value of an environment variable may be stored where others can read it.

    True for variables that configure a library, and for any variable whose value is a number or a switch
    such as `true`. False for all others, and always False for a secret (see `is_secret`).
    """
    if is_secret(variable, value):
        return False
    return bool(_TUNING.fullmatch(variable) or _PLAIN_VALUE.fullmatch(value))


_BUILD_SECRET = "BISECT_ENV_BUILD_ENV_"
_SHORTEST_SECRET = 8


def is_secret(variable: str, value: str) -> bool:
    """Return whether an environment variable probably holds a secret, judging by its name and value.

    A token or a URL with a password counts as a secret under any name. A single digit or a word such as
    `true` is never one: it hides nothing, and two values of a switch must be told apart.
    """
    if _SWITCH.fullmatch(value):
        return False
    looks_secret = _SECRET_VARIABLE.search(variable) or _TOKEN_VALUE.search(value)
    return looks_secret is not None or without_passwords(value) != value


def left_out(count: int) -> str:
    """Return the mark for `count` bytes that were cut from the middle of an output.

    `without_values` recognises the mark.
    """
    return f"\n[… {count} bytes left out …]\n"


_GAP = re.compile(r"\n\[… \d+ bytes left out …\]\n")


def has_gap(text: str) -> bool:
    """Return whether bytes were cut from the middle of an output."""
    return _GAP.search(text) is not None


def without_values(text: str, variables: Mapping[str, str], shortest: int = _SHORTEST_SECRET) -> str:
    """Return `text` with the values of secret variables (see `is_secret`) replaced by `***`.

    A value is also found as Python or JSON quotes it, and each of its lines is found without the others. A
    part of a value that was cut by a gap (see `left_out`) cannot be found. As many characters as the longest
    value has are therefore replaced on both sides of the gap.

    Args:
        text: The text, for example the output of a script.
        variables: The environment variables that the script was given.
        shortest: Number of characters of the shortest value to replace. Shorter values, and lines of fewer
            than eight characters, are kept: they also occur as ordinary words.
    """
    secrets = [v for name, v in variables.items() if len(v) >= shortest and is_secret(name, v)]
    lines = (line.strip() for value in secrets for line in value.splitlines())
    written = set()
    for part in (*secrets, *(line for line in lines if len(line) >= _SHORTEST_SECRET)):
        quoted = (repr(part), json.dumps(part), json.dumps(part, ensure_ascii=False))
        written |= {part, *(one[1:-1] for one in quoted)}
    for one in sorted(written, key=len, reverse=True):
        text = text.replace(one, MASK)
    longest = max(map(len, written), default=0)
    # The script itself may have printed such a gap, too. From the last to the first, so that places stay.
    for gap in reversed([*_GAP.finditer(text)] if written else []):
        before, after = text[: max(0, gap.start() - longest)], text[gap.end() + longest :]
        text = f"{before}{MASK}{gap[0]}{MASK}{after}"
    return text


def keep_for_builds(variables: Mapping[str, str]) -> None:
    """Store the secret variables of a build in the environment of this process.

    Locks are written to files and to the database, so they contain `***` instead of a secret. `for_build`
    later reads the real value from the environment, which worker processes on this host inherit.
    """
    os.environ.update({_BUILD_SECRET + k: v for k, v in variables.items() if v != MASK and is_secret(k, v)})


def for_build(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a build, with each `***` replaced by the secret that `keep_for_builds` stored.

    Raises:
        InfrastructureError: The value of a masked variable is not known to this process.
    """
    found = {}
    for name, value in variables.items():
        known = os.environ.get(_BUILD_SECRET + name) if value == MASK else value
        if known is None:
            raise InfrastructureError(
                f"the build needs the variable {name}, whose value may be a secret and is not in the lock",
                remedy=f"name the matrix, or set {_BUILD_SECRET}{name} where the build runs",
            )
        found[name] = known
    return found


def without_passwords(text: str) -> str:
    """Return `text` with the passwords and tokens in URLs and authorization headers replaced by `***`."""
    if not any(hint in text for hint in _HINTS):
        return text
    for pattern, replacement in _PASSWORDS:
        text = pattern.sub(_masked_parameter if replacement is None else replacement, text)
    return text


def without_passwords_in_code(text: str) -> str:
    """Return a command line or traceback with passwords replaced by `***`, even passwords with spaces.

    Passwords may also contain quotes and slashes. More than the password may be removed from a line with
    several addresses, so do not use this function for prose.
    """
    return without_passwords(_WIDELY.sub(rf"\1{MASK}@", without_passwords(text)))


def without_credentials(url: str) -> str:
    """Return a URL without user name, password and secret parameters, for messages and lock files."""
    parts = urlsplit(url)
    kept = "&".join(p for p in parts.query.split("&") if not is_secret_parameter(p.partition("=")[0]))
    if "@" not in parts.netloc and kept == parts.query:
        return url
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query=kept))


def public_channel(url: str) -> str:
    """Return the URL of a conda channel without user name, password, token and final slash."""
    return _CHANNEL_TOKEN.sub("", without_credentials(url)).rstrip("/")


def without_channel_secrets(text: str) -> str:
    """Return a solver's message without user names, passwords and tokens of conda channels.

    Use this only for messages of solvers. In other texts `/t/` may be an ordinary part of a URL.
    """
    return _CHANNEL_TOKEN.sub("/t/...", _USER_INSIDE.sub("://", text))


def public_json(value: Any) -> Any:
    """Return a copy of a JSON value with the passwords in its strings replaced by `***`. Keys are kept."""
    if isinstance(value, str):
        return without_passwords(value)
    if isinstance(value, Mapping):
        return {key: public_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [public_json(item) for item in value]
    return value


def _masked_parameter(found: re.Match[str]) -> str:
    return f"{found[1]}{MASK}" if is_secret_parameter(found[2]) else found[0]
