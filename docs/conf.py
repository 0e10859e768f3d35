"""The site: `make docs` builds it with warnings as errors, and asks nothing of the network."""

import sys
from pathlib import Path

import offsetkeeper

sys.path.insert(0, str(Path(__file__).parent))
import generated

project = "offsetkeeper"
author = copyright = "The offsetkeeper developers"  # noqa: A001 - Sphinx gives it this name
release = offsetkeeper.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"offsetkeeper {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
autodoc_member_order = "bysource"
autodoc_typehints = "none"
napoleon_use_ivar = True
suppress_warnings = ["misc.highlighting_failure"]

generated.write(Path(__file__).parent / "reference")
