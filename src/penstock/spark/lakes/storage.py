"""Where tables and archives are: a folder, or an object store. s3:// and s3a:// are two names of one place.

Arrow, `deltalake` and `pyiceberg` speak S3 themselves, and take keys, region and address from the environment (AWS_…). Spark
does so through Hadoop's s3a, for which it needs the package hadoop-aws.
"""

from __future__ import annotations

import re

from pyarrow import fs


def for_libraries(place: str) -> str:
    return re.sub("^s3[an]://", "s3://", place)


def for_spark(place: str) -> str:
    return re.sub("^s3n?://", "s3a://", place)


def is_local(place: str) -> bool:
    return place.startswith("/")


def file_system(place: str) -> tuple[fs.FileSystem, str]:
    """The file system, and the place on it."""
    if is_local(place):
        return fs.LocalFileSystem(), place
    found: tuple[fs.FileSystem, str] = fs.FileSystem.from_uri(for_libraries(place))
    return found
