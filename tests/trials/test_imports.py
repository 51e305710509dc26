"""What a script really imported, against what was locked."""

# ruff: noqa: E501 - tables of long lines

from __future__ import annotations

import csv
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bisect_env.matrix.files import StudyFile
from bisect_env.trials.harness_marks import (
    Expected,
    Imported,
    LockedDistribution,
    expected_imports,
    imported_versions,
    mismatch,
)
from bisect_env.trials.records import Outcome, TrialRecord
from bisect_env.trials.run import run_trial
from tests.trials.trial_support import PREFIX, make_spec

Run = Callable[..., TrialRecord]

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


def installed(prefix: Path, name: str, version: str, *files: str) -> Path:
    site = prefix / "lib" / "python3.11" / "site-packages"
    info = site / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    with (info / "RECORD").open("w", newline="") as stream:
        csv.writer(stream).writerows([file, "", ""] for file in (*files, f"{info.name}/RECORD"))
    return site


@pytest.mark.parametrize(
    ("files", "modules"),
    [
        (["one/__init__.py", "one/two/__init__.py", "one/data.py", "tests/__init__.py"], {"one"}),
        (["google/cloud/storage/__init__.py", "google/cloud/storage/a.py"], {"google.cloud.storage"}),
        (["six.py", "_fast.cpython-311-x86_64-linux-gnu.so", "_abi.abi3.so"], {"six", "_fast", "_abi"}),
        (["one/__init__.py", "one_more/__init__.py"], {"one", "one_more"}),
        (["../../../bin/tool", "one-dash/__init__.py", "data/file.py"], set()),
        ([f"m{i}.py" for i in range(20)], {"m0", "m1", "m10", "m11", "m12", "m13"}),
    ],
)
def test_modules_are_read_from_what_was_installed(
    tmp_path: Path, files: list[str], modules: set[str]
) -> None:
    site = installed(tmp_path, "Some.Thing", "1.0", *files)
    found = expected_imports(
        tmp_path, (LockedDistribution("some-thing", "1.0"), LockedDistribution("absent", "2"))
    )
    assert set(found) == modules
    assert all(
        one == Expected(LockedDistribution("some-thing", "1.0"), str(site), "1.0") for one in found.values()
    )


def test_an_unreadable_list_is_none(tmp_path: Path) -> None:
    installed(tmp_path, "one", "1.0")
    (tmp_path / "lib/python3.11/site-packages/one-1.0.dist-info/RECORD").write_bytes(b'\xff"\0\n"')
    assert expected_imports(tmp_path, (LockedDistribution("one", "1.0"),)) == {}


SITE = "/p/lib/python3.11/site-packages"
EXPECTED = {
    "python": Expected(LockedDistribution("python", "3.11")),
    "numpy": Expected(LockedDistribution("numpy", "1.26.4"), SITE, "1.26.4"),
    "torch": Expected(LockedDistribution("torch", "2.4.0", cuda=True), SITE, "2.4.0"),
    "changed": Expected(LockedDistribution("changed", "2.0"), SITE, "1.9"),
    "dataclasses": Expected(LockedDistribution("dataclasses", "0.8"), SITE, "0.8"),
}


@pytest.mark.parametrize(
    ("module", "stated", "file", "says"),
    [
        ("python", "3.11.7", "/p/bin/python", ""),
        ("python", "3.12.1", "/p/bin/python", "Python 3.11 was locked, and 3.12.1 ran (/p/bin/python)"),
        ("numpy", "1.26.4", f"{SITE}/numpy/__init__.py", ""),
        # The metadata beside it decide: many packages forget to raise what they state.
        ("numpy", "0.0.0", f"{SITE}/numpy/__init__.py", ""),
        ("numpy", "1.25.0", "/usr/lib/python3/dist-packages/numpy/__init__.py",
         "numpy 1.26.4 was locked, and 1.25.0 was imported from /usr/lib/python3/dist-packages/numpy/__init__.py"),
        ("numpy", "1.26.4", "/usr/lib/python3/dist-packages/numpy/__init__.py", ""),
        ("dataclasses", "", "/usr/lib/python3.11/dataclasses.py", ""),
        ("torch", "2.4.0+cu121", f"{SITE}/torch/__init__.py", ""),
        ("torch", "2.4.0+cpu", f"{SITE}/torch/__init__.py",
         "torch 2.4.0 for CUDA was locked, and 2.4.0+cpu was imported"),
        ("changed", "2.0", f"{SITE}/changed.py", f"changed 2.0 was locked, and 1.9 was imported from {SITE}/changed.py"),
        ("unknown", "1", "/x.py", ""),
    ],
)  # fmt: skip
def test_what_is_not_the_locks(module: str, stated: str, file: str, says: str) -> None:
    assert mismatch(EXPECTED, [Imported(module, stated, file)]) == says


def test_versions_as_they_really_were() -> None:
    imported = [
        Imported("python", "3.11.7", "/p/bin/python"),
        Imported("torch", "2.4.0+cu121", f"{SITE}/torch/__init__.py"),
        Imported("numpy", "", f"{SITE}/numpy/__init__.py"),
        Imported("dataclasses", "", "/usr/lib/python3.11/dataclasses.py"),
    ]
    assert imported_versions(EXPECTED, imported) == {
        "python": "3.11.7",
        "torch": "2.4.0+cu121",
        "numpy": "1.26.4",
        "dataclasses": "unknown",
    }


@pytest.mark.integration
def test_a_trial_reports_what_it_imported(run: Run) -> None:
    import numpy

    locked = (
        LockedDistribution("numpy", numpy.__version__),
        LockedDistribution("python", PYTHON),
        LockedDistribution("scipy", "1.0"),
    )
    record = run_trial(make_spec("import numpy"), PREFIX, locked=locked)
    assert record.outcome is Outcome.PASS
    assert record.imported["numpy"] == numpy.__version__
    assert set(record.imported) == {"numpy", "python"}


@pytest.mark.integration
@pytest.mark.parametrize("end", ["", "import os; os.abort()", "1/0"])
def test_another_version_from_elsewhere_is_a_mismatch_however_the_script_ends(end: str) -> None:
    import numpy

    files = (
        StudyFile("main.py", f"import numpy\n{end}\n".encode()),
        StudyFile("numpy/__init__.py", b"__version__ = '1.0'\n"),
    )
    locked = (LockedDistribution("numpy", numpy.__version__), LockedDistribution("python", PYTHON))
    record = run_trial(make_spec(files=files), PREFIX, locked=locked)
    assert record.outcome is Outcome.ENV_MISMATCH
    assert record.detail.startswith(f"numpy {numpy.__version__} was locked, and 1.0 was imported from ")
    assert record.imported["numpy"] == "1.0"


@pytest.mark.integration
def test_another_interpreter_is_a_mismatch() -> None:
    record = run_trial(make_spec("pass"), PREFIX, locked=(LockedDistribution("python", "2.9"),))
    assert record.outcome is Outcome.ENV_MISMATCH
    assert "Python 2.9 was locked" in record.detail
