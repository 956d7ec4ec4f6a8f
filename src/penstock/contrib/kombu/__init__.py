"""Kombu's transport for Penstock, and so the broker of Celery: ``broker_url = "penstock+sqlite:///jobs.db"``.

An import of this module makes the scheme known. Celery needs no import: kombu loads the entry points of its serializers when it
is imported, and one of them leads here. (Kombu has none for transports.)
"""

from penstock.errors import MissingExtra

try:
    from kombu.transport import TRANSPORT_ALIASES
except ImportError:
    raise MissingExtra("penstock.contrib.kombu", "celery") from None

TRANSPORT_ALIASES.setdefault("penstock", "penstock.contrib.kombu.transport:Transport")

NO_SERIALIZER = (None, None, "application/vnd.penstock")
"""What kombu registers as the serializer of our entry point: it has neither an encoder nor a decoder."""
