"""A project of Django whose tasks are in Penstock."""
