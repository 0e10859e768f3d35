"""README as the long description: its links lead to the repository, as an index has none of the files."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_FILES = "https://github.com/offsetkeeper/offsetkeeper/blob/main/"
_PICTURES = "https://github.com/offsetkeeper/offsetkeeper/raw/main/"


class Readme(MetadataHookInterface):
    """Puts the long description into the metadata."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set `readme`."""
        text = Path(self.root, "README.md").read_text("utf-8")
        shown = re.sub(r"(!\[[^\]]*\]\()(?!https?:)", rf"\g<1>{_PICTURES}", text)
        linked = re.sub(r"\]\((?!https?:|#)", f"]({_FILES}", shown)
        metadata["readme"] = {"content-type": "text/markdown", "text": linked}
