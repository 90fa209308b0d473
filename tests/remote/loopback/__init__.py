"""A server that speaks NDIF's protocol over real sockets on 127.0.0.1, for tests: see server.py."""

from importlib.util import find_spec

MISSING = [name for name in ("ndif", "boto3", "grpc", "redis") if find_spec(name) is None]
