"""The project's own image: built by a real engine on a Debian base, then used as the documentation says."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import filelock
import platformdirs
import pytest

from bisect_env.containers.engine import CommandResult, Engine
from tests.containers.real_engine import unavailable

ROOT = Path(__file__).parents[2]
BASE = "localhost/bisect-env-test-debian:base"
IMAGE = "localhost/bisect-env-test-own:latest"


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"\\\n\s*", "", (ROOT / "Dockerfile").read_text("utf-8"))
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


def test_what_the_dockerfile_promises() -> None:
    """The base is an argument, gdb and py-spy are inside, the command is the entry point, nobody is root."""
    steps = instructions()
    assert steps[0][0] == "ARG"
    assert steps[0][1].startswith("BASE=")
    assert steps[1] == ("FROM", "${BASE}")
    words = [word for word, _ in steps]
    assert words.index("USER") > max(i for i, word in enumerate(words) if word == "RUN")
    assert ("ENTRYPOINT", '["bisect-env"]') in steps
    assert any(word == "RUN" and " gdb " in rest for word, rest in steps)
    assert re.search(r"^py-spy==", (ROOT / "requirements.lock").read_text("utf-8"), re.MULTILINE)
    for word, rest in steps:
        if word == "COPY":
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists(), source


def debian_archive() -> Path:
    """A Debian of debootstrap, made once for each machine."""
    if shutil.which("debootstrap") is None or os.geteuid() != 0:
        unavailable("debootstrap, as root, makes the base image")
    cache = Path(os.environ.get("BISECT_ENV_TEST_CACHE") or platformdirs.user_cache_path("bisect-env-tests"))
    cache.mkdir(parents=True, exist_ok=True)
    archive = cache / "bookworm.tar"
    with filelock.FileLock(cache / "bookworm.lock"):
        if not archive.exists():
            root = cache / "bookworm"
            shutil.rmtree(root, ignore_errors=True)
            subprocess.run(
                ["debootstrap", "--variant=minbase", "bookworm", root], check=True, stdout=subprocess.DEVNULL
            )
            subprocess.run(["tar", "-C", root, "-cf", f"{archive}.new", "."], check=True)
            Path(f"{archive}.new").rename(archive)
            shutil.rmtree(root)
    return archive


def build(engine: Engine, tag: str, folder: Path, *options: str) -> None:
    isolation = ("--isolation", "chroot") if engine.kind == "podman" else ()
    said = engine.ask(
        "build", "--network", "host", *isolation, *options, "--tag", tag, str(folder), timeout=900
    )
    assert said.ok, said.stdout[-3000:] + said.stderr[-3000:]


@pytest.fixture(scope="module")
def own_image(
    shared_image: tuple[dict[str, str], Engine, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    _, engine, _ = shared_image
    with debian_archive().open("rb") as archive:
        subprocess.run(engine.argv("import", "-", BASE), stdin=archive, check=True, capture_output=True)
    # The base has what this machine has for its network: authorities of its own, if there are any.
    folder = tmp_path_factory.mktemp("base")
    lines = [f"FROM {BASE}"]
    if authorities := os.environ.get("SSL_CERT_FILE"):
        shutil.copy(authorities, folder / "ca.crt")
        lines += [
            "COPY ca.crt /ca.crt",
            "ENV PIP_CERT=/ca.crt SSL_CERT_FILE=/ca.crt REQUESTS_CA_BUNDLE=/ca.crt",
        ]
    (folder / "Dockerfile").write_text("\n".join(lines) + "\n")
    try:
        build(engine, f"{BASE}-ca", folder)
        build(engine, IMAGE, ROOT, "--build-arg", f"BASE={BASE}-ca")
        yield engine
    finally:
        engine.ask("rmi", "--force", IMAGE, f"{BASE}-ca", BASE)


def run(engine: Engine, *words: str, options: tuple[str, ...] = (), timeout: float = 300) -> CommandResult:
    return engine.ask("run", "--rm", *engine.run_args, *options, IMAGE, *words, timeout=timeout)


@pytest.mark.heavy
@pytest.mark.integration
@pytest.mark.network
@pytest.mark.timeout(1500)
def test_the_image_is_built_and_used(own_image: Engine, tmp_path: Path) -> None:
    engine = own_image
    assert "Usage: bisect-env" in run(engine, options=("--network", "none")).stdout
    tools = "id -u && gdb --version && py-spy --version"
    said = run(engine, "-c", tools, options=("--network", "none", "--entrypoint", "sh"))
    assert said.ok, said.stderr
    assert said.stdout.splitlines()[0] != "0"
    # The quickstart, as the page on containers shows it.
    study = tmp_path / "study"
    shutil.copytree(ROOT / "matrices" / "repros", study / "repros")
    shutil.copy(ROOT / "matrices" / "quickstart.yaml", study)
    for path in (tmp_path, study, *study.rglob("*")):
        path.chmod(0o777)
    mounted = ("--network", "host", "--volume", f"{study}:/study")
    answer = run(engine, "run", "quickstart.yaml", options=mounted)
    assert answer.ok, answer.stderr
    assert answer.stdout.startswith("orjson 3.9.11 is the first bad version (last good 3.9.10)")
    use_as_a_worker(engine, tmp_path)


def use_as_a_worker(engine: Engine, folder: Path) -> None:
    """A study of this machine whose trials run on a Dask worker in the image."""
    address_file = folder / "scheduler.json"
    words = ["-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard"]
    name = f"bisect-env-test-worker-{os.getpid()}"
    scheduler = subprocess.Popen(
        [sys.executable, *words, "--scheduler-file", str(address_file)], stderr=subprocess.DEVNULL
    )
    try:
        while not address_file.exists():
            assert scheduler.poll() is None
            time.sleep(0.1)
        time.sleep(0.5)
        address = json.loads(address_file.read_text())["address"]
        options = ("--detach", "--name", name, "--network", "host", "--entrypoint", "dask")
        started = run(engine, "worker", address, "--nthreads", "1", "--no-dashboard", options=options)
        assert started.ok, started.stderr
        (folder / "script.py").write_text("import sys\nsys.exit(int(sys.argv[1]) >= 3)\n")
        (folder / "m.yaml").write_text(
            "version: 1\nname: planted\naxes:\n  python: {package: python, versions: ['3.11']}\n"
            "  level: {values: [1, 2, 3, 4]}\ngood: {level: 1}\nbad: {level: 4}\n"
            "trial: {command: 'python script.py {level}', files: [script.py]}\n"
        )
        command = [
            "run",
            "m.yaml",
            "--scheduler",
            address,
            "--db",
            "r.sqlite",
            "--lockfiles",
            "locks",
            "--json",
        ]
        done = subprocess.run(
            [sys.executable, "-m", "bisect_env", *command],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr + done.stdout[-2000:] + engine.ask("logs", name).words
        verdict = json.loads(done.stdout.splitlines()[-1])
        assert '"level": "3"' in json.dumps(verdict)
    finally:
        engine.ask("rm", "--force", name)
        scheduler.terminate()
        scheduler.wait()
