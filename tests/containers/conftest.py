from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from bisect_env.containers.engine import Engine, resolve_image
from bisect_env.containers.trial import Inside
from tests.containers.real_engine import OURS, forget_engines, working_image


@pytest.fixture(scope="session")
def shared_image() -> Iterator[tuple[dict[str, str], Engine, str]]:
    worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
    with working_image(f"localhost/bisect-env-test-{os.getpid()}:{worker}") as found:
        yield found


@pytest.fixture
def image(shared_image: tuple[dict[str, str], Engine, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Name of the test image; the environment has what this machine's engine needs."""
    settings, engine, name = shared_image
    for variable, value in settings.items():
        monkeypatch.setenv(variable, value)
    forget_engines()
    yield name
    forget_engines()
    left = engine.ask("ps", "--all", "--quiet", "--filter", f"label={OURS}").stdout.split()
    assert left == [], "containers are left"


@pytest.fixture
def inside(image: str, shared_image: tuple[dict[str, str], Engine, str]) -> Inside:
    _, engine, _ = shared_image
    return Inside(engine, resolve_image(engine, image))
