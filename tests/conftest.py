from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes, or is in the making, says how busy the machine is; pytest ends what hangs.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

# What the developer has configured for pip would come to the packages of every test.
os.environ["PIP_CONFIG_FILE"] = os.devnull
for name in [name for name in os.environ if name.startswith(("PIP_EXTRA", "PIP_FIND", "PIP_INDEX"))]:
    del os.environ[name]

MAY_START = {"whole_command", "slow", "heavy"}
running: list[pytest.Item] = []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    running.append(item)
    try:
        return (yield)
    finally:
        running.pop()


def refuse_the_whole_command(event: str, arguments: tuple[Any, ...]) -> None:
    """Three tests of `make test` start it as a process; all others can call it in their own."""
    if event != "subprocess.Popen" or not running or not isinstance(arguments[1], list | tuple):
        return
    if ("-m", "bisect_env") in itertools.pairwise(arguments[1]):
        marks = {mark.name for mark in running[-1].iter_markers()}
        assert marks & MAY_START, "call the command in this process (`run`), or mark this test `slow`"


sys.addaudithook(refuse_the_whole_command)
