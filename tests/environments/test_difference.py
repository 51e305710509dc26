"""What changed between two locks."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from bisect_env.environments.difference import counted, difference, project_urls
from bisect_env.environments.lock import Lock, LockedPackage
from bisect_env.environments.lockfiles import make_lock


def wheel(name: str, version: str, sha: str = "", host: str = "files.example") -> LockedPackage:
    url = f"https://{host}/{name}-{version}-py3-none-any.whl"
    return LockedPackage(
        name, version, "pip", url, sha or hashlib.sha256(f"{name}{version}".encode()).hexdigest()
    )


def conda(name: str, version: str, build: str, channel: str = "conda-forge") -> LockedPackage:
    url = f"https://channels.example/{channel}/linux-64/{name}-{version}-{build}.conda"
    return LockedPackage(
        name,
        version,
        "conda",
        url,
        hashlib.sha256(f"{name}{version}{build}{channel}".encode()).hexdigest(),
        build,
        "0" * 32,
    )


def lock(*packages: LockedPackage, python: str = "3.11") -> Lock:
    return make_lock(python, "linux-64", packages)


def test_builds_of_two_commits_are_told_apart() -> None:
    builds = [
        LockedPackage("demo", "1.0", "pip", f"git+https://example.org/demo.git@{digit * 40}#h=1", digit * 64)
        for digit in "ab"
    ]
    (change,) = difference(lock(builds[0]), lock(builds[1]))
    assert change.before is not None
    assert change.after is not None
    assert (change.before.label, change.after.label) == ("1.0 at aaaaaaaaaa", "1.0 at bbbbbbbbbb")


def test_each_kind_of_change() -> None:
    before = lock(
        wheel("torch", "2.2"),
        wheel("gone", "1"),
        wheel("same", "1"),
        wheel("rebuilt", "1", "aa" * 32),
        wheel("numpy", "1.26"),
        wheel("mirrored", "3", "cc" * 32),
    )
    after = lock(
        wheel("torch", "2.3"),
        wheel("new", "7"),
        wheel("same", "1"),
        wheel("rebuilt", "1", "bb" * 32),
        wheel("numpy", "2.0"),
        wheel("mirrored", "3", "cc" * 32, "mirror.example"),
    )
    found = [(c.name, c.kind, c.of_axis) for c in difference(before, after, ["torch", "cuml"])]
    assert found == [
        ("torch", "changed", True),
        ("gone", "removed", False),
        ("mirrored", "moved", False),
        ("new", "added", False),
        ("numpy", "changed", False),
        ("rebuilt", "rebuilt", False),
    ]
    said = counted(difference(before, after, ["torch"]))
    assert said == "6 packages changed (the one you asked about, and 5 more)"
    assert counted(()) == "no package differs"


def test_a_build_and_a_channel_are_changes() -> None:
    before = lock(conda("python", "3.11.9", "h1"), conda("mkl", "2024.1", "h2"), conda("zlib", "1.3", "h3"))
    after = lock(
        conda("python", "3.11.9", "h1"), conda("mkl", "2024.1", "h9"), conda("zlib", "1.3", "h3", "defaults")
    )
    by_name = {change.name: change for change in difference(before, after)}
    assert by_name.keys() == {"mkl", "zlib"}
    assert by_name["mkl"].before is not None
    assert by_name["mkl"].before.label == "2024.1 h2"
    assert by_name["zlib"].after is not None
    assert by_name["zlib"].after.source == "https://channels.example/defaults"


def test_the_interpreter_counts_also_where_it_is_no_package() -> None:
    (change,) = difference(lock(wheel("a", "1"), python="3.10"), lock(wheel("a", "1")), ["python"])
    assert (change.name, change.kind, change.of_axis) == ("python", "changed", True)


PACKAGES = st.dictionaries(
    st.sampled_from(["a", "b", "c", "d", "e"]), st.sampled_from(["1", "2", "3"]), max_size=5
)


@given(PACKAGES, PACKAGES)
def test_a_difference_turns_around_and_explains_everything(
    first: dict[str, str], second: dict[str, str]
) -> None:
    before, after = (lock(*(wheel(n, v) for n, v in side.items())) for side in (first, second))
    there, back = difference(before, after), difference(after, before)
    assert {(c.name, c.before, c.after) for c in there} == {(c.name, c.after, c.before) for c in back}
    rebuilt = dict(first)
    for change in there:
        rebuilt.pop(change.name, None)
        if change.after is not None:
            rebuilt[change.name] = change.after.version
    assert rebuilt == second
    assert difference(before, before) == ()


def test_projects_say_where_they_live(tmp_path: Path) -> None:
    site = tmp_path / "env" / "lib" / "python3.11" / "site-packages"
    texts = {
        "One": "Name: One\nProject-URL: Tracker, https://x.example/i\nProject-URL: Source, https://x.example\n",
        "two": "Name: two\nHome-page: https://two.example\nProject-URL: Donate, https://money.example\n",
        "bad": "Name: bad\nHome-page: javascript:alert(1)\n",
    }
    for name, text in texts.items():
        (site / f"{name}-1.dist-info").mkdir(parents=True)
        (site / f"{name}-1.dist-info" / "METADATA").write_text(text)
    archive = tmp_path / "pkgs" / "zlib"
    (archive / "info").mkdir(parents=True)
    (archive / "info" / "about.json").write_text(json.dumps({"home": "https://zlib.example"}))
    meta = tmp_path / "env" / "conda-meta"
    meta.mkdir()
    (meta / "zlib.json").write_text(json.dumps({"name": "zlib", "extracted_package_dir": str(archive)}))
    (meta / "broken.json").write_text("{")
    assert project_urls([tmp_path / "absent", tmp_path / "env"]) == {
        "one": "https://x.example",
        "two": "https://two.example",
        "zlib": "https://zlib.example",
    }
