"""Names of packages whose modules are imported under another name. Pure."""

from __future__ import annotations

from packaging.utils import canonicalize_name

IMPORTED_AS = {
    "attr": "attrs",
    "bs4": "beautifulsoup4",
    "crypto": "pycryptodome",
    "cv2": "opencv-python-headless",
    "dateutil": "python-dateutil",
    "openssl": "pyopenssl",
    "pil": "pillow",
    "pkg-resources": "setuptools",
    "pytorch": "torch",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
"""Maps normalised import names, and names used elsewhere, to the names of packages on PyPI."""


def package_of_module(module: str) -> str:
    """Return the name of the package that usually provides a module: `pyyaml` for `yaml.sub`."""
    top = str(canonicalize_name(module.partition(".")[0]))
    return IMPORTED_AS.get(top, top)


def is_known_module(module: str) -> bool:
    """Return whether it is well known which package provides a module, so that a guess cannot be wrong."""
    return str(canonicalize_name(module.partition(".")[0])) in IMPORTED_AS
