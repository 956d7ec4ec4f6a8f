"""The same broker and queue over HTTP."""
