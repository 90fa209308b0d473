"""A server that speaks NDIF's protocol over real sockets on 127.0.0.1, for tests: see server.py."""
