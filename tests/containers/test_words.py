"""What is said to an engine and read from it, without one."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisect_env.containers.engine import (
    ENGINE,
    RUN_ARGS,
    Engine,
    NoSuchImageError,
    ensure_image,
    find_engine,
    full_image_name,
    image_repository,
    resolve_image,
)
from bisect_env.containers.trial import (
    INIT,
    Contained,
    Inside,
    Parcel,
    ending,
    gpu_options,
    is_closed,
    open_up_argv,
    prepare,
    run_argv,
)
from bisect_env.errors import InfrastructureError, UsageError
from bisect_env.temporary import remove_tree
from bisect_env.trials.workdir import trial_env, work_dir
from tests.trials.trial_support import make_spec

UUIDS = ("GPU-1", "GPU-2")


def program(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_an_engine_whose_daemon_is_away_is_none(tmp_path: Path) -> None:
    program(tmp_path, "docker", "echo 'Cannot connect to the daemon' >&2; exit 1")
    with pytest.raises(InfrastructureError) as raised:
        find_engine({"PATH": str(tmp_path)})
    assert "podman: not on this machine" in str(raised.value)
    assert "docker: Cannot connect to the daemon" in str(raised.value)
    assert ENGINE in str(raised.value)


@pytest.mark.parametrize(
    ("words", "kind", "said"),
    [
        (
            "unauthorized: access to the requested resource is not authorized",
            InfrastructureError,
            "login example.org",
        ),
        (
            "Error: reading manifest 9.9 in example.org/it: manifest unknown",
            NoSuchImageError,
            "manifest unknown",
        ),
    ],
)
def test_a_registry_that_wants_a_login_says_nothing_about_an_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, kind: type[Exception], said: str
) -> None:
    program(tmp_path, "docker", f"case $1 in pull) echo '{words}' >&2;; esac; exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr("shutil.which", lambda _name, **_options: None)
    engine = Engine("docker", (str(tmp_path / "docker"),))
    for ask in (resolve_image, ensure_image):
        with pytest.raises(kind, match=said):
            ask(engine, f"example.org/it@sha256:{'0' * 64}" if ask is ensure_image else "example.org/it:9.9")


def test_the_engine_that_works_is_taken_with_the_options_of_this_host(tmp_path: Path) -> None:
    program(tmp_path, "podman", "exit 1")
    program(tmp_path, "docker", "echo Docker version 28")
    environ = {"PATH": str(tmp_path), RUN_ARGS: "--ulimit nofile=1024:1024"}
    found = find_engine(environ)
    assert (found.kind, found.command) == ("docker", (str(tmp_path / "docker"),))
    assert found.run_args == ("--ulimit", "nofile=1024:1024")
    # podman under docker's name, as Debian's podman-docker has it, understands podman's options.
    program(tmp_path, "mine", "echo podman version 4.3.1")
    named = find_engine({"PATH": str(tmp_path), ENGINE: "mine --runtime runc"})
    assert (named.kind, named.command[1:]) == ("podman", ("--runtime", "runc"))


@pytest.mark.parametrize("variable", [ENGINE, RUN_ARGS])
def test_a_variable_that_cannot_be_read_is_named(tmp_path: Path, variable: str) -> None:
    with pytest.raises(UsageError, match=variable):
        find_engine({"PATH": str(tmp_path), variable: "--ulimit 'nofile"})


@pytest.mark.parametrize(
    ("name", "whole", "bare"),
    [
        ("python", "docker.io/library/python", "docker.io/library/python"),
        ("python:3.12-slim", "docker.io/library/python:3.12-slim", "docker.io/library/python"),
        ("rapidsai/base:24.04", "docker.io/rapidsai/base:24.04", "docker.io/rapidsai/base"),
        ("nvcr.io/nvidia/pytorch:25.01-py3", None, "nvcr.io/nvidia/pytorch"),
        ("registry:5000/a/b", None, "registry:5000/a/b"),
        ("localhost/a:1", None, "localhost/a"),
        ("a@sha256:" + "0" * 64, "docker.io/library/a@sha256:" + "0" * 64, "docker.io/library/a"),
    ],
)
def test_names_of_images(name: str, whole: str | None, bare: str) -> None:
    assert full_image_name(name) == (whole or name)
    assert image_repository(full_image_name(name)) == bare


@given(st.from_regex(r"[a-z][a-z0-9.:-]{0,20}(/[a-z0-9]{1,8}){0,3}(:[A-Za-z0-9._-]{1,10})?", fullmatch=True))
def test_completing_a_name_twice_changes_nothing(name: str) -> None:
    whole = full_image_name(name)
    assert full_image_name(whole) == whole
    assert whole.endswith(name)
    assert whole.startswith(image_repository(whole))


def test_gpus_are_passed_by_uuid() -> None:
    assert gpu_options("docker", UUIDS) == ["--gpus", '"device=GPU-1,GPU-2"']
    podman = gpu_options("podman", UUIDS)
    assert podman == ["--device", "nvidia.com/gpu=GPU-1", "--device", "nvidia.com/gpu=GPU-2"]


def test_the_command_line_of_a_trial() -> None:
    engine = Engine("docker", ("/usr/bin/docker",), ("--ulimit", "nofile=9:9"))
    inside = Inside(engine, "repo@sha256:1", Path("/cache/prefix"), Path("/opt/python"))
    top = Path("/tmp/t")
    parcel = Parcel("name", "trial", ["x"], {}, top / "work", top / "tmp", top / "control", gpus=UUIDS)
    argv = run_argv(inside, parcel, ["script.py", "data", 'a,"b"'])
    text = " ".join(argv)
    assert argv[:2] == ["/usr/bin/docker", "run"]
    assert "--network none" in text
    assert "--pull never" in text
    for read_only in ("work/script.py", "work/data"):
        assert f"type=bind,src=/tmp/t/{read_only},dst=/tmp/t/{read_only},readonly" in argv
    # The engines read a line of comma-separated values.
    comma = '/tmp/t/work/a,""b""'
    assert f'type=bind,"src={comma}","dst={comma}",readonly' in argv
    assert "type=bind,src=/tmp/t/tmp,dst=/tmp/t/tmp" in argv
    for mounted in ("/cache/prefix", "/opt/python"):
        assert f"type=bind,src={mounted},dst={mounted},readonly" in argv
    assert '"device=GPU-1,GPU-2"' in argv
    # The host's own options come last among the options, so that they win.
    assert text.endswith(
        "--ulimit nofile=9:9 --entrypoint /cache/prefix/bin/python repo@sha256:1 "
        "/tmp/t/control/init.py /tmp/t/control"
    )


def report(status: int, **more: object) -> dict[str, object]:
    return {"status": status, "problem": "", "wall": 0.5, "oom_kills": 0, "left_over": 0, **more}


@pytest.mark.parametrize(
    ("status", "state", "returncode", "kills"),
    [
        (11, {"ExitCode": 139}, -11, 0),
        (139 << 8, {"ExitCode": 139}, 139, 0),
        (9, {"ExitCode": 137, "OOMKilled": True}, -9, 1),
        (9, {"ExitCode": 137, "OOMKilled": False}, -9, 0),
    ],
)
def test_139_and_137_are_told_apart(
    status: int, state: dict[str, object], returncode: int, kills: int
) -> None:
    end = ending(report(status), state, 0, "")
    assert (end.returncode, end.oom_kills, end.wall) == (returncode, kills, 0.5)
    counted = ending(report(9, oom_kills=2), {"OOMKilled": False}, 0, "")
    assert counted.oom_kills == 2


def test_what_a_container_wrote_is_opened_up_in_any_depth(tmp_path: Path) -> None:
    top = folder = tmp_path / "trial"
    for _ in range(1100):
        folder.mkdir()
        folder /= "d"
    try:
        assert not is_closed(top)
        argv = open_up_argv(Inside(Engine("podman", ("podman",)), "image"), top)
        subprocess.run([sys.executable, *argv[argv.index("-c") :]], check=True)
        assert stat.S_IMODE(folder.parent.stat().st_mode) == 0o777
    finally:
        remove_tree(top)  # pytest's own clean-up cannot
    assert not top.exists()


def test_endings_without_a_report() -> None:
    killed = ending(None, {"Status": "exited", "ExitCode": 137, "OOMKilled": True}, 137, "")
    assert (killed.returncode, killed.oom_kills) == (-9, 1)
    ended = ending(None, {"Status": "exited", "ExitCode": 143, "OOMKilled": False}, 143, "")
    assert (ended.returncode, ended.oom_kills) == (-15, 0)
    no_python = ending(None, {"Status": "created", "ExitCode": 0}, 127, "exec: python3: not found")
    assert (no_python.stage, no_python.problem) == ("image", "exec: python3: not found")
    limits = "Error: runc create failed: error setting rlimit type 7: OCI permission denied"
    refused = ending(None, {"Status": "created", "ExitCode": 0}, 126, limits)
    assert (refused.stage, refused.problem) == ("", limits)
    too_old = ending(None, {"Status": "exited", "ExitCode": 1}, 1, "SyntaxError: invalid syntax")
    assert (too_old.returncode, too_old.problem) == (None, "SyntaxError: invalid syntax")
    broken = ending(None, None, 125, "Error: unknown flag")
    assert (broken.stage, broken.problem, broken.returncode) == ("", "Error: unknown flag", None)
    lacking = ending(report(127 << 8, problem=f"lookup:{os.EX_NOINPUT}"), {"ExitCode": 127}, 127, "")
    assert (lacking.returncode, lacking.stage) == (None, "lookup")


@pytest.mark.parametrize(
    ("kind", "uuids", "gpus"),
    [
        ("podman", UUIDS[:1], ["--device", "nvidia.com/gpu=GPU-1"]),
        ("podman", UUIDS, ["--device", "nvidia.com/gpu=GPU-1", "--device", "nvidia.com/gpu=GPU-2"]),
        ("docker", UUIDS[:1], ["--gpus", '"device=GPU-1"']),
        ("docker", UUIDS, ["--gpus", '"device=GPU-1,GPU-2"']),
        ("podman", (), []),
        ("docker", (), []),
    ],
)
def test_the_whole_command_line_with_and_without_gpus(
    kind: str, uuids: tuple[str, ...], gpus: list[str]
) -> None:
    inside = Inside(Engine(kind, (f"/usr/bin/{kind}",)), "repo@sha256:1")
    top = Path("/tmp/t")
    parcel = Parcel("name", "id", ["x"], {}, top / "work", top / "tmp", top / "control", gpus=uuids)
    words = ["--name", "name", "--label", "bisect-env.trial=id", "--pull", "never", "--log-driver", "none"]
    words += ["--security-opt", "label=disable", "--network", "none"]
    for mount in (
        *("type=bind,src=/tmp/t/work,dst=/tmp/t/work", "type=bind,src=/tmp/t/tmp,dst=/tmp/t/tmp"),
        *("type=bind,src=/tmp/t/control,dst=/tmp/t/control",),
        *("type=bind,src=/tmp/t/work/main.py,dst=/tmp/t/work/main.py,readonly",),
        *(f"type=bind,src={INIT},dst=/tmp/t/control/init.py,readonly",),
    ):
        words += ["--mount", mount]
    words += [*gpus, "--entrypoint", "python3", "repo@sha256:1", "/tmp/t/control/init.py", "/tmp/t/control"]
    assert run_argv(inside, parcel, ["main.py"]) == [f"/usr/bin/{kind}", "run", *words]


def test_a_script_in_a_container_sees_its_gpus_by_uuid(tmp_path: Path) -> None:
    """From the trial to the engine: the option, and the variables inside."""
    inside = Inside(Engine("podman", ("/usr/bin/podman",)), "repo@sha256:1")
    spec = make_spec("pass")
    with work_dir(spec.files) as directory:
        control = directory.top / "control"
        control.mkdir()
        env = trial_env({}, tmp=directory.tmp, hash_seed=1, trial_id=spec.trial_id, gpus=UUIDS[:1])
        argv, work, tmp = ["python", "main.py"], directory.work, directory.tmp
        parcel = Parcel("name", spec.trial_id, argv, env, work, tmp, control, gpus=UUIDS[:1])
        prepare(inside, parcel)
        contained = Contained(inside, parcel, directory.top)
        command = contained.argv
        request = json.loads((control / "request.json").read_text())
    assert "nvidia.com/gpu=GPU-1" in command
    assert request["env"]["CUDA_VISIBLE_DEVICES"] == "GPU-1"
    assert request["env"]["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    # What the next trial runs, should this one's worker and supervisor be killed together.
    removed, opened = contained.removal
    assert removed == ["/usr/bin/podman", "rm", "--force", "--volumes", "name"]
    assert opened[:2] == ["/usr/bin/podman", "run"]
    assert f"type=bind,src={directory.top},dst={directory.top}" in opened
