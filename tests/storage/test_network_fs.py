from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest

from bisect_env.storage.sqlite import network_file_system, network_file_system_of

MOUNTS = [
    ("/", "ext4"),
    ("/proc", "proc"),
    ("/home", "nfs4"),
    ("/home/me/scratch", "xfs"),
    ("/data", "ext4"),
    ("/data", "fuse.sshfs"),
    ("/lustre", "lustre"),
    ("/fuse", "fuse.ntfs-3g"),
    ("/share", "CIFS"),
    ("/gluster", "fuse.glusterfs"),
]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/var/results.sqlite", None),
        ("/home/me/results.sqlite", "nfs4"),
        ("/homes/me/results.sqlite", None),
        ("/home/me/scratch/results.sqlite", None),
        ("/data/results.sqlite", "fuse.sshfs"),
        ("/lustre/a/b/c", "lustre"),
        ("/fuse/x", None),
        ("/share/x", "cifs"),
        ("/gluster/x", "fuse.glusterfs"),
    ],
)
def test_the_nearest_and_latest_mount_decides(path: str, expected: str | None) -> None:
    assert network_file_system(PurePosixPath(path), MOUNTS) == expected


def test_nothing_known_is_nothing_refused() -> None:
    assert network_file_system(PurePosixPath("/x"), []) is None


def test_this_machine_answers(tmp_path: Path) -> None:
    assert network_file_system_of(tmp_path / "not" / "there") is None


def test_links_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    (tmp_path / "remote").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "remote")
    mounts = [
        SimpleNamespace(mountpoint="/", fstype="ext4"),
        SimpleNamespace(mountpoint=str((tmp_path / "remote").resolve()), fstype="nfs"),
    ]
    monkeypatch.setattr("psutil.disk_partitions", lambda all: mounts)  # noqa: A006
    assert network_file_system_of(tmp_path / "link" / "results.sqlite") == "nfs"
