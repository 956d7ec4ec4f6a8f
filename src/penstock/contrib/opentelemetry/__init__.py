"""Traces by OpenTelemetry: ``PenstockInstrumentor().instrument()``, or a program started by ``opentelemetry-instrument``.

Without a call of `instrument`, nothing of this is loaded, and no verb does anything for it.
"""

from penstock.errors import MissingExtra

try:
    import opentelemetry.trace  # noqa: F401
except ImportError:
    raise MissingExtra("penstock.contrib.opentelemetry", "opentelemetry") from None

from penstock.contrib.opentelemetry.instrumentor import PenstockInstrumentor
from penstock.contrib.opentelemetry.spans import processing

__all__ = ["PenstockInstrumentor", "processing"]
