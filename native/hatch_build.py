"""Compiles the C code. It needs no headers of Python or librdkafka: one wheel is for every Python of a platform."""

from __future__ import annotations

import os
import shlex
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FLAGS = "-std=gnu11 -O2 -fPIC -shared -fvisibility=hidden -Wall -Wextra"


class Compile(BuildHookInterface):
    """Puts `native.so` into the wheel. CC and CFLAGS of the environment are heeded."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - hatchling's signature
        """Compile, and tell which platform the wheel is for."""
        folder = Path(self.root, "src", "offsetkeeper_native")
        made = Path(self.directory, "native.so")
        made.parent.mkdir(parents=True, exist_ok=True)
        compiler, more = shlex.split(os.environ.get("CC", "cc")), shlex.split(os.environ.get("CFLAGS", ""))
        subprocess.run(
            [*compiler, *FLAGS.split(), *more, *map(str, sorted(folder.glob("*.c"))), "-o", str(made), "-ldl"],
            check=True,
        )
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"
        build_data["force_include"][str(made)] = "offsetkeeper_native/native.so"
