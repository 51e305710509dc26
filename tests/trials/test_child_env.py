from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bisect_env.secrets import PASSED
from bisect_env.trials.programs import resolve_program
from bisect_env.trials.workdir import TRIAL_ID, inherited_env, trial_env

BIN = Path("/prefix/bin")


def env_of(outer: dict[str, str], own_bin: Path | None = None, **changes: Any) -> dict[str, str]:
    values: dict[str, Any] = {"tmp": Path("/t"), "hash_seed": 5, "trial_id": "x", **changes}
    return trial_env(inherited_env(outer, BIN, own_bin), **values)


def test_what_dask_and_shells_set_does_not_leak() -> None:
    outer = {
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MALLOC_TRIM_THRESHOLD_": "65536",
        "PYTHONHASHSEED": "6640",
        "PYTHONPATH": "/elsewhere",
        "VIRTUAL_ENV": "/elsewhere",
        "CONDA_PREFIX": "/elsewhere",
        "LD_LIBRARY_PATH": "/elsewhere",
        "LD_PRELOAD": "/elsewhere.so",
        "CUDA_VISIBLE_DEVICES": "0,1,2",
        "RAPIDS_NO_INITIALIZE": "1",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "HOME": "/home/someone",
        "LC_TIME": "de_DE.UTF-8",
        "PATH": "/usr/bin",
    }
    assert env_of(outer) == {
        "HOME": "/home/someone",
        "LC_TIME": "de_DE.UTF-8",
        "LANG": "C.UTF-8",
        "PATH": "/prefix/bin:/usr/bin",
        "TMPDIR": "/t",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONFAULTHANDLER": "1",
        "PYTHONHASHSEED": "5",
        "PYTHONNOUSERSITE": "1",
        "PYTHONUNBUFFERED": "1",
        TRIAL_ID: "x",
    }


@given(st.dictionaries(st.text(min_size=1), st.text()))
def test_nothing_that_is_not_named_passes(outer: dict[str, str]) -> None:
    assert all(name in PASSED or name in env_of({}) for name in env_of(outer).keys() | set())


def test_proxies_come_without_their_logins() -> None:
    outer = {
        "http_proxy": "http://me:hunter2@proxy.example:3128",
        "HTTPS_PROXY": "me:hunter2@proxy.example:3128",
        "https_proxy": "http://me:hun/ter2@x@proxy.example:3128/",
        "ALL_PROXY": "socks5h://hunter2@proxy.example",
        "FTP_PROXY": "http://proxy.example:3128",
        "NO_PROXY": "localhost,.example",
    }
    env = env_of(outer)
    assert "hun" not in str(env)
    assert env["http_proxy"] == "http://proxy.example:3128"
    assert env["HTTPS_PROXY"] == "proxy.example:3128"
    assert env["https_proxy"] == "http://proxy.example:3128/"
    assert env["ALL_PROXY"] == "socks5h://proxy.example"
    assert (env["FTP_PROXY"], env["NO_PROXY"]) == (outer["FTP_PROXY"], outer["NO_PROXY"])


def test_a_locale_that_is_set_is_kept() -> None:
    assert "LANG" not in env_of({"LC_ALL": "en_US.UTF-8"})
    assert env_of({"LANG": "fr_FR.UTF-8"})["LANG"] == "fr_FR.UTF-8"


def test_the_matrix_has_the_last_word() -> None:
    env = env_of({"HOME": "/h"}, extra={"HOME": "/other", "LD_LIBRARY_PATH": "/l", "PYTHONUNBUFFERED": ""})
    assert (env["HOME"], env["LD_LIBRARY_PATH"], env["PYTHONUNBUFFERED"]) == ("/other", "/l", "")


def test_gpus_are_named_in_order() -> None:
    assert env_of({}, gpus=["GPU-1", "GPU-0"])["CUDA_VISIBLE_DEVICES"] == "GPU-1,GPU-0"


def test_path_begins_with_the_prefix_and_lacks_our_own_commands() -> None:
    outer = {"PATH": "/own/bin:/usr/bin::/prefix/bin:/bin"}
    assert env_of(outer, own_bin=Path("/own/bin"))["PATH"] == "/prefix/bin:/usr/bin:/bin"
    assert env_of({})["PATH"].startswith("/prefix/bin:/usr/local/sbin:")


def make_executable(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")
    path.chmod(0o755)
    return path


def test_programs_are_looked_up_in_the_prefix_then_on_the_path(tmp_path: Path) -> None:
    prefix_bin, other = tmp_path / "prefix" / "bin", tmp_path / "other"
    python = make_executable(tmp_path / "interpreter" / "python3.9")
    for path in (prefix_bin / "tool", other / "tool", other / "shell", other / "python3"):
        make_executable(path)

    def resolve(program: str) -> str | None:
        return resolve_program(program, prefix_bin=prefix_bin, python=python, path=str(other))

    assert resolve("tool") == str(prefix_bin / "tool")
    assert resolve("shell") == str(other / "shell")
    assert resolve("missing") is None
    assert resolve("./script.sh") == "./script.sh"
    assert resolve("/usr/bin/env") == "/usr/bin/env"
    # The interpreter is the prefix's or nobody's: never one that happens to be on PATH.
    assert resolve("python") == str(python)
    assert resolve("python3") is None
    inside = make_executable(prefix_bin / "python3")
    assert resolve("python3") == str(inside)
