"""The history of the table of results."""
