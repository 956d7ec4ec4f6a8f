"""What the stores on a database server share."""
