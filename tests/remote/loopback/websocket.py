"""The server's half of a websocket (RFC 6455), as far as a stream of messages to one client needs it."""

import base64
import hashlib
import struct

_MAGIC = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
TEXT, BINARY, CLOSE = 1, 2, 8


def accept(handler):
    """Answer the handshake on a BaseHTTPRequestHandler."""
    digest = hashlib.sha1((handler.headers["Sec-WebSocket-Key"] + _MAGIC).encode()).digest()
    handler.wfile.write(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: " + base64.b64encode(digest) + b"\r\n\r\n"
    )
    handler.wfile.flush()


def send(handler, payload, opcode=TEXT):
    """One unmasked, unfragmented message."""
    payload = payload.encode() if isinstance(payload, str) else payload
    size = len(payload)
    if size < 126:
        head = struct.pack("!BB", 0x80 | opcode, size)
    elif size < 2**16:
        head = struct.pack("!BBH", 0x80 | opcode, 126, size)
    else:
        head = struct.pack("!BBQ", 0x80 | opcode, 127, size)
    handler.wfile.write(head + payload)
    handler.wfile.flush()
