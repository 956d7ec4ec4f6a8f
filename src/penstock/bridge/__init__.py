"""The one bridge between an event loop and the core, which is synchronous: shared commits, and long polls without threads. The
server uses it, and so does `penstock.aopen`."""
