"""A conda channel on this machine: tiny packages made on the spot, as a folder or behind a web server."""

from __future__ import annotations

import hashlib
import io
import json
import sys
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conda_package_streaming.create import conda_builder

from bisect_env.environments.interpreters import machine_interpreters
from bisect_env.matrix.versions import host_platform

from .index_server import IndexServer

DAY_ONE = 1_577_836_800_000  # 2020-01-01, as repodata counts: milliseconds


@dataclass
class Channel:
    """A channel in a folder; `write` after the last `add`.

    Attributes:
        folder: Holds `linux-64` and `noarch`.
    """

    folder: Path
    repodata: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for subdir in (host_platform(), "noarch"):
            (self.folder / subdir).mkdir(parents=True, exist_ok=True)
            self.repodata[subdir] = {
                "info": {"subdir": subdir},
                "packages": {},
                "packages.conda": {},
                "repodata_version": 1,
            }
        self.write()

    @property
    def url(self) -> str:
        """Its address as a folder."""
        return self.folder.as_uri()

    def add(
        self,
        name: str,
        version: str,
        build: str = "0",
        *,
        build_number: int = 0,
        depends: Sequence[str] = (),
        constrains: Sequence[str] = (),
        files: Mapping[str, str | bytes] | None = None,
        links: Mapping[str, str] | None = None,
        executable: Sequence[str] = (),
        noarch: str | None = None,
        entry_points: Sequence[str] = (),
        placeholders: Mapping[str, tuple[str, str]] | None = None,
        timestamp: int | None = DAY_ONE,
        **record: Any,
    ) -> dict[str, Any]:
        """Write an archive and its record; gives the record back, which may still be changed.

        `placeholders` says of files that name their prefix how they name it, and `text` or `binary`.
        """
        subdir = "noarch" if noarch else host_platform()
        stem = f"{name}-{version}-{build}"
        index = {
            "name": name,
            "version": version,
            "build": build,
            "build_number": build_number,
            "depends": list(depends),
            "constrains": list(constrains),
            "subdir": subdir,
            **({"noarch": noarch} if noarch else {}),
            **({"timestamp": timestamp} if timestamp is not None else {}),
        }
        archive = _archive(
            self.folder / subdir,
            stem,
            index,
            files or {},
            links or {},
            executable,
            entry_points,
            placeholders or {},
        )
        content = archive.read_bytes()
        entry = {
            **index,
            "md5": hashlib.md5(content).hexdigest(),
            "sha256": hashlib.sha256(content).hexdigest(),
            "size": len(content),
            **record,
        }
        self.repodata[subdir]["packages.conda"][archive.name] = entry
        return entry

    def add_python(self, version: str | None = None) -> dict[str, Any]:
        """A Python whose interpreter is this machine's: an environment of links, as small as can be."""
        interpreter = machine_interpreters().find(version or "{}.{}".format(*sys.version_info[:2]))
        minor = ".".join(interpreter.version.split(".")[:2])
        names = ("python", "python3", f"python{minor}")
        home = f"home = {interpreter.path.parent}\ninclude-system-site-packages = false\n"
        return self.add(
            "python",
            interpreter.version,
            f"h0_0_cp{minor.replace('.', '')}",
            files={
                "pyvenv.cfg": home + f"version = {interpreter.version}\n",
                f"lib/python{minor}/site-packages/README": "packages\n",
            },
            links={f"bin/{name}": str(interpreter.path) for name in names},
        )

    def add_library(
        self, name: str, version: str, build: str = "0", *, python: str | None = None, **more: Any
    ) -> Any:
        """A package with a module of its name that knows its version; for one Python, or for all (noarch)."""
        module = name.replace("-", "_")
        code = f"__version__ = {version!r}\n" + more.pop("code", "")
        depends = list(more.pop("depends", ()))
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        info = {
            f"{module}-{version}.dist-info/METADATA": metadata,
            f"{module}-{version}.dist-info/RECORD": "",
            f"{module}-{version}.dist-info/INSTALLER": "conda\n",
        }
        files = {f"{module}.py": code, **info}
        if python is None:
            files = {f"site-packages/{path}": text for path, text in files.items()}
            return self.add(
                name, version, build, depends=["python", *depends], files=files, noarch="python", **more
            )
        folder = f"lib/python{python}/site-packages"
        files = {f"{folder}/{path}": text for path, text in files.items()}
        return self.add(name, version, build, depends=[f"python {python}.*", *depends], files=files, **more)

    def write(self) -> None:
        """Write the repodata of all subdirs."""
        for subdir, data in self.repodata.items():
            (self.folder / subdir / "repodata.json").write_text(json.dumps(data))

    def serve(self, server: IndexServer) -> str:
        """Let a running server answer for this channel; gives back its address."""
        server.folders["/conda"] = self.folder
        return server.url.removesuffix("/simple") + "/conda"


def _archive(
    folder: Path,
    stem: str,
    index: Mapping[str, Any],
    files: Mapping[str, str | bytes],
    links: Mapping[str, str],
    executable: Sequence[str],
    entry_points: Sequence[str],
    placeholders: Mapping[str, tuple[str, str]],
) -> Path:
    contents = {path: text.encode() if isinstance(text, str) else text for path, text in files.items()}
    paths: list[dict[str, Any]] = [
        {
            "_path": path,
            "path_type": "hardlink",
            "sha256": hashlib.sha256(content).hexdigest(),
            "size_in_bytes": len(content),
            **dict(zip(("prefix_placeholder", "file_mode"), placeholders.get(path, ()), strict=False)),
        }
        for path, content in contents.items()
    ]
    paths += [{"_path": path, "path_type": "softlink"} for path in links]
    info = {
        "info/index.json": json.dumps(index),
        "info/paths.json": json.dumps({"paths": paths, "paths_version": 1}),
        "info/about.json": "{}",
        "info/files": "".join(f"{path}\n" for path in (*contents, *links)),
    }
    if index.get("noarch") == "python":
        noarch = {"type": "python", "entry_points": list(entry_points)}
        info["info/link.json"] = json.dumps({"noarch": noarch, "package_metadata_version": 1})
    (folder / f"{stem}.conda").unlink(missing_ok=True)
    with conda_builder(stem, folder, compression_level=1) as archive:
        for path, content in (*contents.items(), *((p, t.encode()) for p, t in info.items())):
            member = tarfile.TarInfo(path)
            member.size = len(content)
            member.mode = 0o755 if path in executable else 0o644
            archive.addfile(member, io.BytesIO(content))
        for path, target in links.items():
            member = tarfile.TarInfo(path)
            member.type, member.linkname = tarfile.SYMTYPE, target
            archive.addfile(member)
    return folder / f"{stem}.conda"
