"""HTTP/1.1 on sockets: the parser, limits, requests and responses."""
