"""Whether a file lies on a network file system, where SQLite's WAL is not safe.

WAL's index is memory shared between processes; two hosts do not share memory, so that both would write as if
they were alone (https://sqlite.org/wal.html, "All processes using a database must be on the same host").
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path, PurePath

import psutil

_NETWORK = frozenset(
    {
        *(
            "nfs",
            "nfs3",
            "nfs4",
            "cifs",
            "smb",
            "smb2",
            "smb3",
            "smbfs",
            "ncpfs",
            "afs",
            "auristorfs",
            "coda",
        ),
        *("ceph", "lustre", "gpfs", "beegfs", "fhgfs", "glusterfs", "panfs", "pvfs2", "orangefs", "wekafs"),
        # Cluster file systems: one disk, several hosts, no shared memory.
        *("gfs2", "ocfs2"),
    }
)
_NETWORK_FUSE = frozenset(
    {
        *(
            "sshfs",
            "glusterfs",
            "ceph",
            "ceph-fuse",
            "s3fs",
            "gcsfuse",
            "goofys",
            "rclone",
            "davfs",
            "davfs2",
        ),
        *("juicefs", "seaweedfs", "mount-s3", "blobfuse", "blobfuse2", "curlftpfs", "cvmfs2", "moosefs"),
    }
)


def network_file_system(path: PurePath, mounts: Iterable[tuple[str, str]]) -> str | None:
    """The type of the network file system that holds a path, None when it is a local one. Pure.

    Args:
        path: Absolute and without symbolic links.
        mounts: (mount point, file system type) in the order of mounting; of two at one point the last counts.
    """
    holder: tuple[int, str] = (-1, "")
    for point, kind in mounts:
        mount = PurePath(point)
        if path.is_relative_to(mount) and len(mount.parts) >= holder[0]:
            holder = (len(mount.parts), kind)
    kind = holder[1].lower()
    _, is_fuse, driver = kind.partition("fuse.")
    network = driver in _NETWORK_FUSE | _NETWORK if is_fuse else kind in _NETWORK
    return kind if network else None


def network_file_system_of(path: Path) -> str | None:
    """The same for a path of this machine, which need not exist yet."""
    mounts = [(partition.mountpoint, partition.fstype) for partition in psutil.disk_partitions(all=True)]
    return network_file_system(path.resolve(), mounts)
