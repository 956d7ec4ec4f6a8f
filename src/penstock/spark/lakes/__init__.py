"""Tables of Delta and Iceberg: Spark's executors write the files, and the driver commits them by the table's library."""

from penstock.errors import MissingExtra

try:
    import pyarrow  # noqa: F401
except ImportError as error:
    raise MissingExtra("a table of Delta or Iceberg", "lakes") from error
