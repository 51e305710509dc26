"""The documentation as a site: `make docs`."""

from importlib.metadata import version as _version

project = "bisect-env"
release = version = _version("bisect-env")
project_copyright = "the bisect-env developers"
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_site"]
root_doc = "index"

html_theme = "furo"
html_title = f"bisect-env {release}"
html_copy_source = False
html_show_sphinx = False
# Whoever reads it may be on a host without a network: nothing is fetched from anywhere.
html_theme_options = {"source_repository": "", "top_of_page_buttons": []}

# A heading can be linked to by its words: [TLS](clusters.md#tls).
myst_heading_anchors = 3
# What is not a page stays a link to the file: matrices, tests, modules.
myst_enable_extensions = ["colon_fence"]
nitpicky = True
pygments_style = "default"
pygments_dark_style = "monokai"
