"""Another host, as far as the kernel is concerned: a network namespace with one cable to this one."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest

# Of documentation (RFC 5737): nobody's network.
_HERE, _THERE = "203.0.113.1", "203.0.113.2"

_CONNECT = """
import socket, sys
for port in sys.argv[2:]:
    for address in sys.argv[1].split(","):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family) as stream:
            stream.settimeout(3)
            try:
                stream.connect((address, int(port)))
                print(address, port, "open")
            except OSError as error:
                print(address, port, "closed")
"""


@dataclass(frozen=True)
class OtherHost:
    """A network namespace; what runs in it reaches this host by the addresses of `addresses` alone.

    Attributes:
        name: The namespace's.
        addresses: Of this host, as the other one sees it.
    """

    name: str
    addresses: tuple[str, ...]

    def run(self, argv: Sequence[str], timeout: float = 120.0) -> subprocess.CompletedProcess[str]:
        """Run a command there."""
        return subprocess.run(
            ["ip", "netns", "exec", self.name, *argv],
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
        )

    def reaches(self, ports: Sequence[int]) -> set[int]:
        """Ports of this host that accept a connection from there, on any of its addresses."""
        words = [",".join(self.addresses), *map(str, ports)]
        said = self.run([sys.executable, "-c", _CONNECT, *words])
        lines = [line.split() for line in said.stdout.splitlines()]
        assert len(lines) == len(ports) * len(self.addresses), said.stderr
        return {int(port) for _, port, state in lines if state == "open"}


@contextlib.contextmanager
def other_host() -> Iterator[OtherHost]:
    """Make the namespace and its cable, and take both away; the test is skipped where that is not allowed.

    What it would show is shown to work first: a socket on all addresses is reached from there.
    """
    name = f"be-{os.getpid()}-{secrets.token_hex(2)}"
    cable = f"be{secrets.token_hex(4)}"
    inside = ("ip", "netns", "exec", name)
    steps = (
        ("ip", "netns", "add", name),
        ("ip", "link", "add", cable, "type", "veth", "peer", "name", "eth9", "netns", name),
        ("ip", "addr", "add", f"{_HERE}/30", "dev", cable),
        ("ip", "link", "set", cable, "up"),
        (*inside, "ip", "addr", "add", f"{_THERE}/30", "dev", "eth9"),
        (*inside, "ip", "link", "set", "eth9", "up"),
        (*inside, "ip", "link", "set", "lo", "up"),
        (*inside, "ip", "route", "add", "default", "via", _HERE),
    )
    try:
        try:
            for step in steps:
                subprocess.run(step, check=True, capture_output=True, text=True, timeout=20)
        except (OSError, subprocess.CalledProcessError) as error:
            words = getattr(error, "stderr", "") or str(error)
            pytest.skip(f"no network namespace can be made here: {words.strip()}")
        there = OtherHost(name, (_HERE, *_own_addresses()))
        with socket.create_server(("0.0.0.0", 0)) as known:
            port = known.getsockname()[1]
            assert there.reaches([port]) == {port}, "the other host reaches nothing at all"
        yield there
    finally:
        # The cable goes with either end.
        for step in (("ip", "link", "del", cable), ("ip", "netns", "del", name)):
            with contextlib.suppress(OSError):
                subprocess.run(step, check=False, capture_output=True, timeout=20)


def _own_addresses() -> list[str]:
    """IPv4 addresses that this host has on other cables."""
    found = subprocess.run(
        ["ip", "-4", "-o", "addr", "show", "scope", "global"], capture_output=True, text=True, check=True
    ).stdout
    addresses = [line.split()[3].partition("/")[0] for line in found.splitlines()]
    return [address for address in addresses if address != _HERE]
