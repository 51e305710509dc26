"""Run trials on an existing Dask cluster, whatever its hosts are.

The command shares only messages with the workers. Each host builds prefixes (installed environments) in its
own cache, from the lock that comes with a trial; only once per host, because builders of one host exclude
each other by a file lock. Workers may join and leave at any time. The executor changes nothing of the
cluster.
"""

from __future__ import annotations

import asyncio
import time
import warnings
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import distributed
from distributed.comm.core import CommClosedError, FatalCommClosedError, connect

from bisect_env.cluster.base import DaskExecutor
from bisect_env.cluster.choose import address_in
from bisect_env.cluster.perform import PrefixBuilder
from bisect_env.errors import InfrastructureError, UsageError

# --------------------------------------------------------------------------------------------------
# Compare the versions of this command, a scheduler and its workers. Pure.

OURS = "bisect-env"

_EVERYWHERE = ("python", "dask", "distributed")
"""Packages whose versions Dask needs to be equal on all sides; of Python, major and minor version."""


def version_problems(answer: Mapping[str, Any]) -> list[str]:
    """Compare package versions between this command and a cluster; return one line for each difference.

    Only packages whose versions must be equal are compared.

    Args:
        answer: Result of `Client.get_versions(packages=["bisect-env"])`.
    """
    here = answer["client"]
    # The scheduler only passes trials on, so it need not have bisect-env.
    sides: list[tuple[str, Any, tuple[str, ...]]] = [("the scheduler", answer["scheduler"], _EVERYWHERE)]
    workers = sorted(answer["workers"].items())
    sides += [(f"the worker {address}", versions, (*_EVERYWHERE, OURS)) for address, versions in workers]
    differing: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for side, versions, packages in sides:
        for package in packages:
            if (theirs := _shown(package, versions)) != _shown(package, here):
                differing[package, theirs].append(side)
    return [
        f"{package}: this command has {_shown(package, here)}, {who[0]} "
        f"{'has' if len(who) == 1 else f'and {len(who) - 1} more have'} {theirs}"
        for (package, theirs), who in differing.items()
    ]


def _shown(package: str, versions: Mapping[str, Any] | None) -> str:
    found = versions["packages"].get(package) if versions else None
    if found is None:
        return "none"
    return ".".join(found.split(".")[:2]) if package == "python" else str(found)


# --------------------------------------------------------------------------------------------------
# Run trials on a Dask cluster that somebody else started.

CONNECT_TIMEOUT = 30.0
"""Maximum seconds to reach the scheduler."""
WORKERS_TIMEOUT = 60.0
"""Maximum seconds to wait for the first worker."""

_client: Any = distributed.Client
_security: Any = distributed.Security
_connect: Any = connect
_CommClosedError: Any = CommClosedError
_FatalCommClosedError: Any = FatalCommClosedError


class RemoteExecutor(DaskExecutor):
    """An executor (it runs trials) that uses an existing Dask cluster.

    TLS and other settings of connections are read from Dask's own configuration (`distributed.comm.tls`).

    Args:
        build: Builds prefixes on the workers' hosts; must be picklable.
        scheduler: Address of the scheduler, such as `tcp://host:8786`.
        scheduler_file: File that `dask scheduler --scheduler-file` wrote, instead of an address.
        gpus_per_trial: See `DaskExecutor`.

    Raises:
        UsageError: The address or the file is invalid.
        InfrastructureError: The cluster cannot be reached, or has no workers, other versions, or too few
            GPUs.
    """

    def __init__(
        self,
        build: PrefixBuilder,
        *,
        scheduler: str | None = None,
        scheduler_file: Path | None = None,
        gpus_per_trial: float = 0,
    ) -> None:
        super().__init__(build, gpus_per_trial=gpus_per_trial)
        client = _open(scheduler, scheduler_file)
        try:
            self._connect(client)
            self._await_workers()
            _refuse_other_versions(client)
            self._refuse_missing_gpus(gpus_per_trial)
        except BaseException:
            client.close()
            raise

    def _await_workers(self) -> None:
        deadline = time.monotonic() + WORKERS_TIMEOUT
        while not self.look(0.0):
            if time.monotonic() > deadline:
                raise InfrastructureError(
                    f"the scheduler {self.client.scheduler.address} has no workers",
                    tried=f"waited {WORKERS_TIMEOUT:.0f} s for one",
                    remedy="start some (`dask worker ADDRESS`), or let it keep one (`adapt(minimum=1)`)",
                )
            time.sleep(0.2)


def _open(scheduler: str | None, scheduler_file: Path | None) -> Any:
    where = str(scheduler_file or scheduler)
    if scheduler_file is not None and not scheduler_file.is_file():
        raise UsageError(
            f"--scheduler-file: {where} is no file",
            remedy="name the file that `dask scheduler --scheduler-file` writes, where this host sees it",
        )
    address = where if scheduler_file is None else address_in(scheduler_file)
    _refuse_tls_without_certificates(address)
    try:
        _refuse_others(address)
        with warnings.catch_warnings():
            # Dask would only warn about different versions; `_refuse_other_versions` raises an error.
            warnings.simplefilter("ignore", distributed.versions.VersionMismatchWarning)
            return _client(address, set_as_default=False, timeout=CONNECT_TIMEOUT)
    except ValueError as error:
        raise UsageError(
            f"{where} is no scheduler's address: {error}", remedy="write it as `tcp://HOST:8786`"
        ) from error
    except (OSError, TimeoutError) as error:
        raise InfrastructureError(
            f"the scheduler at {where} cannot be reached: {error}",
            remedy="see that it runs and that this host may connect to it (for tls://, that the "
            "certificates of `distributed.comm.tls` in Dask's configuration fit)",
        ) from error


def _refuse_others(address: str) -> None:
    """Raise an error if what answers at an address is no Dask scheduler, or nothing answers.

    Without this check, Dask's client would wait for ever if another service (a web server, say) has this
    address: such a service sends nothing, or nothing that can be read.

    Raises:
        InfrastructureError: Another service answers, or there is no answer.
        OSError: Nothing listens, or the certificates do not match.
        ValueError: The address is invalid.
    """
    if not address:
        raise ValueError("it names none")
    limit = CONNECT_TIMEOUT * 5 / 6

    async def shake_hands() -> None:
        # Retry a refused connection, because the scheduler may just be starting.
        settings = _security().get_connection_args("client")
        connecting = _connect(address, timeout=limit * 0.8, **settings)
        comm = await asyncio.wait_for(connecting, limit)
        comm.abort()

    try:
        asyncio.run(shake_hands())
    except _FatalCommClosedError:
        raise
    except TimeoutError:
        why = f"no answer in {limit:.0f} s"
    except _CommClosedError as error:
        why = f"it hangs up: {error}"
    except (OSError, ValueError):
        raise
    except Exception as error:  # noqa: BLE001 -- bytes of another protocol, read as Dask's, end in anything
        why = f"it answers something else: {type(error).__name__}"
    else:
        return
    raise InfrastructureError(
        f"the scheduler at {address} cannot be reached: nothing that speaks Dask's protocol listens there "
        f"({why})",
        remedy="give the address that `dask scheduler` prints, with tls:// and fitting certificates where it "
        "speaks TLS",
    )


def _refuse_tls_without_certificates(address: str) -> None:
    """Raise an error if an address needs TLS, but Dask's configuration has no usable certificates.

    Without this check, Dask's client would fail with a `TypeError` and delay the end of the command by a
    minute.
    """
    if not address.startswith("tls://"):
        return
    remedy = (
        "set `distributed.comm.tls` in Dask's configuration, or the variables "
        "DASK_DISTRIBUTED__COMM__TLS__CA_FILE, ...__TLS__CLIENT__CERT and ...__TLS__CLIENT__KEY"
    )
    try:
        context = _security().get_connection_args("client").get("ssl_context")
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise InfrastructureError(
            f"the TLS certificates for {address} cannot be used: {error}", remedy=remedy
        ) from error
    if context is None:
        raise InfrastructureError(
            f"the scheduler at {address} speaks TLS, and Dask's configuration here names no certificate",
            remedy=remedy,
        )


def _refuse_other_versions(client: Any) -> None:
    problems = version_problems(client.get_versions(packages=[OURS]))
    if problems:
        raise InfrastructureError(
            "this command and the Dask cluster cannot work together:\n    " + "\n    ".join(problems),
            remedy="install the same versions here, for the scheduler and for its workers",
        )
