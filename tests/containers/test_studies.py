"""Whole studies in containers: axes that choose images, locked environments in one image, tags that move."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from bisect_env.cluster.pool import PoolExecutor
from bisect_env.containers.engine import Engine
from bisect_env.engine import events
from bisect_env.environments.image_lock import ensure_environment
from bisect_env.errors import ExitCode, NoEnvironmentError
from bisect_env.storage.store import Store
from tests.cli.calls import caller
from tests.engine.studies import PYTHON, Done, Studies

pytestmark = [pytest.mark.slow, pytest.mark.integration]

TagImage = Callable[[str, int], None]
MATRIX = """\
version: 1
name: images
axes:
  level: {{values: [1, 2, 3, 4, 5, 6]}}
executor: {{kind: container, image: "{image}"}}
good: {{level: 1}}
bad: {{level: 6}}
trial: {{command: python script.py, files: [script.py], timeout: 20s}}
"""
SCRIPT = "import os\nif int(os.environ['LEVEL']) >= 4: os.abort()\n"


@pytest.fixture
def tag_image(image: str, shared_image: tuple[dict[str, str], Engine, str]) -> Iterator[TagImage]:
    """Makes an image that says which level it is."""
    _, engine, _ = shared_image
    made = []

    def tag(name: str, level: int) -> None:
        built = subprocess.run(
            engine.argv("build", "--quiet", "--tag", name, "-"),
            input=f"FROM {image}\nENV LEVEL={level}\n".encode(),
            check=True,
            capture_output=True,
            timeout=60,
        )
        # By its id: one whose tag has moved has no other name.
        made.append(built.stdout.decode().split()[-1])

    yield tag
    engine.ask("rmi", "--force", *dict.fromkeys(made))


def study(studies: Studies, path: Path) -> Done:
    build = partial(ensure_environment, cache_dir=studies.folder / "cache")
    return studies.run(path, make_executor=lambda: PoolExecutor(build, 2))


@pytest.fixture
def studies(tmp_path: Path) -> Studies:
    return Studies(tmp_path)


def test_axes_choose_images_and_a_tag_that_moves_is_noticed(
    studies: Studies, image: str, tag_image: TagImage
) -> None:
    levels = image.replace("test-", "levels-").rpartition(":")[0]
    for level in (1, 2, 3, 4, 6):
        tag_image(f"{levels}:{level}", level)
    path = studies.folder / "matrix.yaml"
    path.write_text(MATRIX.format(image=levels + ":{level}"))
    (studies.folder / "script.py").write_text(SCRIPT)
    done = study(studies, path)
    assert done.exit_code is ExitCode.VERDICT
    verdict = done.report["verdict"]
    assert (verdict["last_good"], verdict["first_bad"]) == ({"level": "3"}, {"level": "4"})
    with Store.open(str(studies.db)) as store:
        known = store.study()
        states = {state.combination["level"]: state for state in store.combinations(known.id)}
        # There is no fifth image: that combination has no environment, and the others have their own.
        assert states["5"].status == "env-unsolvable"
        assert "none of that name" in states["5"].reason
        locks = {level: store.lock(state.lock_hash) for level, state in states.items() if state.lock_hash}
    assert len({lock.content_hash for lock in locks.values() if lock}) == 5
    (package,) = locks["4"].packages  # type: ignore[union-attr]
    assert (package.name, package.manager) == (levels, "image")
    assert package.url == f"{levels}@sha256:{package.sha256}"
    # The tag of a good image now names a bad one: the study says so, and goes on with what it had.
    tag_image(f"{levels}:3", 9)
    studies.events.clear()
    again = study(studies, path)
    assert again.report["verdict"]["first_bad"] == {"level": "4"}
    (warning,) = [event.text for event in studies.events if isinstance(event, events.Warned)]
    assert f"the image {levels}:3 is sha256:" in warning
    assert f"goes on with sha256:{locks['3'].packages[0].version}" in warning  # type: ignore[union-attr]


def test_a_locked_environment_in_an_image(studies: Studies, image: str) -> None:
    path = studies.matrix(
        """
        import os, sys
        assert os.path.exists("/etc") and not os.path.exists("/root/.cache"), "this is no container"
        assert "prefixes" in sys.prefix, sys.prefix
        if int(sys.argv[1]) >= 6: os.abort()
        """,
        rest=f"executor: {{kind: container, image: '{image}'}}\ngood: {{level: 0}}\nbad: {{level: 9}}",
    )
    done = study(studies, path)
    assert done.report["verdict"]["first_bad"] == {"python": PYTHON, "level": "6"}
    with Store.open(str(studies.db)) as store:
        (lock,) = {
            lock
            for state in store.combinations(store.study().id)
            if (lock := store.lock(state.lock_hash or ""))
        }
    assert lock.python == PYTHON
    assert [package.manager for package in lock.packages] == ["image"]


def test_there_is_no_shell_on_the_host_for_an_image(
    studies: Studies, image: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = studies.folder / "matrix.yaml"
    path.write_text(MATRIX.format(image=image))
    (studies.folder / "script.py").write_text(SCRIPT)
    monkeypatch.setenv("BISECT_ENV_DB", str(studies.db))
    code, _, err = caller(monkeypatch, capsys)("shell", str(path), "--at", "level=1")
    assert code == 2
    assert "runs in a container" in err
    assert f"run --rm -it {image.rpartition(':')[0]}@sha256:" in err or "run --rm -it sha256:" in err


def test_without_any_image_there_is_no_environment(studies: Studies, image: str) -> None:
    path = studies.folder / "matrix.yaml"
    path.write_text(MATRIX.format(image="localhost/bisect-env-none:{level}"))
    (studies.folder / "script.py").write_text(SCRIPT)
    with pytest.raises(NoEnvironmentError, match="none of that name"):
        study(studies, path)
