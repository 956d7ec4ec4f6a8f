"""Penstock under asyncio: the verbs of `Broker` and `Queue` as coroutines, on the bridge that the server has or over HTTP."""
