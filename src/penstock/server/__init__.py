"""The service: any store behind HTTP, in several dialects on one port (`penstock serve`)."""

from penstock.errors import MissingExtra

try:
    import httptools  # noqa: F401
except ImportError as error:
    raise MissingExtra("the server", "server") from error

from penstock.server.running import BackgroundServer, Server, serve
from penstock.server.settings import ServerSettings, read_settings
from penstock.server.workers import Worker, Workers

__all__ = ["BackgroundServer", "Server", "ServerSettings", "Worker", "Workers", "read_settings", "serve"]
