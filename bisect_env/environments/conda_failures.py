"""What a user is told when a conda channel fails. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from bisect_env.environments.conda_config import without_secrets
from bisect_env.environments.failures import PackageNotFoundError
from bisect_env.errors import BisectEnvError, IndexUnavailableError, InfrastructureError

_NO_CHANNEL = re.compile(r"could not find subdir '[^']*' in channel '([^']*)'")
_STATUS = re.compile(r"HTTP status (?:client|server) error \((\d+ [^)]*)\) for url \(([^)]*)\)")
_URL = re.compile(r"\((https?://[^)\s]*)\)")
_NOT_REPODATA = re.compile(
    r"parse repodata|decode|expected value|invalid type|missing field|EOF while parsing"
)
_NO_ROOM = re.compile(r"No space left on device|Disk quota exceeded")
_CERTIFICATE = re.compile(r"invalid peer certificate")
_SILENT = re.compile(r"operation timed out|deadline has elapsed")

TRANSIENT = re.compile(
    r"""error\ sending\ request | timed\ out | dns\ error | [Cc]onnection\ (refused|reset|closed)
      | HTTP\ status\ server\ error | HTTP\ status\ client\ error\ \((401|403|407|408|429)
      | [Hh]ash\ mismatch | mismatch.*(sha256|hash) | No\ space\ left | Disk\ quota
      | [Nn]etwork\ is | unexpected\ (end\ of\ file|EOF) | Too\ many\ open\ files | Cannot\ allocate
      | error\ decoding\ response\ body | died\ of\ SIG""",
    re.VERBOSE,
)
"""Words of an installer that tell of the network, the disk or a spoilt download."""


def answered(answer: dict[str, Any], channels: Sequence[str], tried: str) -> dict[str, Any]:
    """The answer of a helper, unless it failed.

    Raises:
        IndexUnavailableError: A channel cannot be used.
        InfrastructureError: The cache cannot be written.
    """
    if "failed" not in answer:
        return answer
    text = str(answer["text"])
    if _NO_ROOM.search(text) or answer["failed"] == "install":
        raise InfrastructureError(
            f"repodata cannot be kept in the cache: {last_words(text)}",
            tried=tried,
            remedy="free some space, or name another cache with BISECT_ENV_CACHE",
        )
    raise channel_failure(text, channels, tried)


def channel_failure(text: str, channels: Sequence[str], tried: str) -> BisectEnvError:
    """Put rattler's words about a channel into ours.

    Args:
        text: Its error with its causes, a line each.
        channels: Those that were asked.
        tried: What for.
    """
    channel = _channel_of(text, channels)
    text = without_secrets(text)
    if found := _NO_CHANNEL.search(text):
        return IndexUnavailableError(
            f"there is no conda channel at {found[1].rstrip('/')}",
            tried=tried,
            remedy="correct its name in `channels`; a bare name belongs to the `channel_alias` of .condarc",
        )
    again = (
        "check the network, proxy and credentials (~/.condarc, rattler's authentication file), "
        "then give the same command again"
    )
    if status := _STATUS.search(text):
        return IndexUnavailableError(
            f"the conda channel {channel} answers {status[1]}", tried=tried, remedy=again
        )
    if _CERTIFICATE.search(text):
        return IndexUnavailableError(
            f"the conda channel {channel} cannot be trusted: {last_words(text)}",
            tried=tried,
            remedy="name the file with your authority's certificate: `ssl_verify: FILE` in ~/.condarc, or "
            "SSL_CERT_FILE; rattler checks certificates always, also with `ssl_verify: false`",
        )
    if _SILENT.search(text) or text.startswith("no answer"):
        return IndexUnavailableError(
            f"the conda channel {channel} cannot be used: no answer in time", tried=tried, remedy=again
        )
    if _NOT_REPODATA.search(text):
        return IndexUnavailableError(
            f"the conda channel {channel} does not answer with repodata: {last_words(text)}",
            tried=tried,
            remedy="give the address of a channel: the folder that holds noarch/repodata.json",
        )
    return IndexUnavailableError(
        f"the conda channel {channel} cannot be used: {last_words(text)}", tried=tried, remedy=again
    )


def unknown_package(name: str, near: Sequence[str], channels: Sequence[str]) -> PackageNotFoundError:
    """No channel has a package of this name, in any version."""
    hint = f"did you mean {' or '.join(near)}?" if near else "nothing there has a similar name"
    return PackageNotFoundError(
        f"no conda channel has a package {name!r}; {hint}",
        tried=", ".join(channels),
        remedy="correct the name, or add the channel that has it to `channels`",
    )


def last_words(text: str) -> str:
    """The innermost cause of an error of rattler's."""
    return text.splitlines()[-1].removeprefix("Caused by: ") if text else "no reason given"


def _channel_of(text: str, channels: Sequence[str]) -> str:
    named = _URL.search(text)
    for channel in channels:
        if named and named[1].startswith(f"{channel}/"):
            return channel
    return channels[0] if len(channels) == 1 else " or ".join(channels)
