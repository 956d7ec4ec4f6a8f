"""The folders of pipelines: which folder a path means, and what is synced."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from queue import Queue

import pytest

from penstock.errors import BadInput
from penstock.spark.pipelines import folders
from penstock.spark.pipelines.folders import DataFolder


@pytest.mark.parametrize("place", ["foo://bar/x", "s3a://bar/x", "data:2024/x", "hdfs://bar/x"])
def test_a_place_that_nothing_here_can_open_is_told_by_its_name(place: str) -> None:
    with pytest.raises(BadInput, match=f"'{place}' is not a folder that can be opened"):
        DataFolder(place)


def test_a_refused_place_is_told_without_its_password() -> None:
    with pytest.raises(BadInput) as caught:
        DataFolder("foo://me:secret@bar/x")
    assert "secret" not in str(caught.value)


def test_a_folder_is_the_one_that_spark_means_without_dots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "far" / "away").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "far" / "away")
    assert DataFolder(f"{tmp_path}/link/../lake").url == f"{tmp_path}/lake"
    assert DataFolder(f"file://{tmp_path}/x/../lake").url == f"{tmp_path}/lake"
    monkeypatch.chdir(tmp_path)
    assert DataFolder("./data:2024/x").url == f"{tmp_path}/data:2024/x"


def test_what_is_being_written_is_synced_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = Queue[str]()
    monkeypatch.setattr(folders, "SYNC_EVERY", 0.01)
    monkeypatch.setattr(folders, "sync", synced.put)
    with DataFolder(str(tmp_path)).syncing("staged"):
        (tmp_path / "staged/day").mkdir(parents=True)
        (tmp_path / "staged/day/part").write_text("rows")
        assert synced.get(timeout=10) == f"{tmp_path}/staged/day/part"
    assert not [thread for thread in threading.enumerate() if thread.name.endswith("(follow)")]


def test_a_sync_that_failed_meanwhile_is_not_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = threading.Event()

    def fail(path: str) -> None:
        failed.set()
        raise OSError(errno.EIO, "Input/output error", path)

    (tmp_path / "staged").mkdir()
    (tmp_path / "staged/part").write_text("rows")
    monkeypatch.setattr(folders, "SYNC_EVERY", 0.01)
    monkeypatch.setattr(folders, "sync", fail)
    with pytest.raises(OSError, match="Input/output error"), DataFolder(str(tmp_path)).syncing("staged"):
        assert failed.wait(10)
