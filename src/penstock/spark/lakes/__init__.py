"""Tables of Delta and Iceberg: Spark's executors write the files, and the driver commits them by the table's library."""
