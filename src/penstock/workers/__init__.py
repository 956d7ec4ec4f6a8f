"""Producers and consumers, and the parts of a consumer."""
