"""Where projects live, as they say themselves: read from environments that exist on this host.

No network is asked: what is not installed here has no page.
"""

from __future__ import annotations

import email.parser
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from packaging.utils import canonicalize_name

_LABELS = ("homepage", "home", "source", "repository", "source code", "github", "documentation")
"""Labels of `Project-URL` in order of preference; they are free text."""


def project_homes(prefixes: Iterable[Path]) -> dict[str, str]:
    """Pages of the projects whose packages are installed in these prefixes.

    Args:
        prefixes: Directories of environments; those that do not exist are passed over.

    Returns:
        Normalised name to address, https and http alone.
    """
    found: dict[str, str] = {}
    for prefix in prefixes:
        for name, home in (*_of_wheels(prefix), *_of_conda(prefix)):
            if home.startswith(("https://", "http://")):
                found.setdefault(canonicalize_name(name), home)
    return found


def _of_wheels(prefix: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(prefix.glob("lib/python*/site-packages/*.dist-info/METADATA")):
        try:
            # Some headers are not UTF-8; of those that are needed here, all are.
            text = path.read_text("utf-8", errors="replace")
        except OSError:  # a prefix that is being taken away: a page less
            continue
        headers = email.parser.Parser().parsestr(text, headersonly=True)
        labelled: dict[str, str] = {}
        for value in headers.get_all("Project-URL", ()):
            label, _, address = str(value).partition(",")
            labelled.setdefault(label.strip().lower(), address.strip())
        home = next((labelled[label] for label in _LABELS if label in labelled), "")
        yield str(headers["Name"] or ""), home or str(headers["Home-page"] or "")


def _of_conda(prefix: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(prefix.glob("conda-meta/*.json")):
        try:
            record = json.loads(path.read_text("utf-8"))
            about = Path(record.get("extracted_package_dir") or "", "info", "about.json")
            home = json.loads(about.read_text("utf-8")).get("home") or ""
        except (OSError, ValueError, AttributeError):
            continue
        # A list in some recipes.
        yield str(record.get("name", "")), str(home[0] if isinstance(home, list) and home else home)
