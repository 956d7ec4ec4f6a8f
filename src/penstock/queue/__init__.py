"""A queue: sending, receiving, settling and browsing, with named claims and sets."""
