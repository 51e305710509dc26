"""Matrices from text, and an index that exists in memory alone."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from bisect_env.matrix.load import Matrix, load_matrix
from bisect_env.matrix.versions import Release


class FakeCatalogue:
    """An index with the given releases; remembers what it was asked."""

    def __init__(
        self, releases: Mapping[str, list[Release]] | None = None, pythons: tuple[str, ...] = ()
    ) -> None:
        self.releases = dict(releases or {})
        self.pythons = pythons
        self.asked: list[tuple[str, str, str | None]] = []

    def versions(self, package: str, *, index: str | None) -> list[Release]:
        self.asked.append((package, "pypi", index))
        return list(self.releases.get(package, []))

    def indexes_without_pages(self) -> list[str]:
        return []

    def conda_versions(
        self, package: str, *, channels: Sequence[str], platform: str, build: str | None
    ) -> list[Release]:
        self.asked.append((package, " ".join(channels), build))
        return list(self.releases.get(package, []))

    def python_versions(self) -> list[str]:
        self.asked.append(("python", "", None))
        return list(self.pythons)


@pytest.fixture
def matrix_of(tmp_path: Path) -> Callable[..., Matrix]:
    """Loads a matrix from text; `trial` and the head are added where the text leaves them out."""

    def load(text: str, files: Mapping[str, str] | None = None) -> Matrix:
        for name, content in (files or {}).items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
        if "trial:" not in text:
            text += "\ntrial: {command: python -c pass}\n"
        path = tmp_path / "matrix.yaml"
        path.write_text(f"version: 1\nname: demo\n{text}", encoding="utf-8")
        return load_matrix(path)

    return load
