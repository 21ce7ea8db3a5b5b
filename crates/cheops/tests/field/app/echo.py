"""A service that shows how requests arrive, for tests of the protocol.

- any method on `/echo`: what came: method, target, length and digest of the body, trailers.
- `GET /trailers`: a body in chunks with a trailer.
- `GET /trailers/connection`: the same, with trailers that are about one connection or only for agents.
- `GET /bytes/N`: so many bytes.
- `GET /ws`: a WebSocket that says what it is told.
- `GET /feed`: an upgrade to something of its own, which says a word now and then and hears nothing.
"""

import base64
import hashlib
import struct
import time

from base import PIECE, Gone, Handler, Refused

# Only the last of them may go on to another connection. `X-Named` is named by `Connection`.
OF_CONNECTION = [
    "Connection: close",
    "Keep-Alive: timeout=5",
    "Proxy-Connection: keep-alive",
    "TE: gzip",
    "Upgrade: h2c",
    "X-Named: 1",
    "X-Scope: web: site9",
    "X-Cheops-Site: site9",
    "X-Sum: 11",
]
WEBSOCKET = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class Echo(Handler):
    def serve(self):
        match self.segments:
            case ["echo"]:
                self.echo()
            case ["trailers"]:
                self.with_trailers(["X-Sum: 11"])
            case ["trailers", "connection"]:
                self.with_trailers(OF_CONNECTION, connection="X-Named")
            case ["bytes", count]:
                self.bytes(int(count))
            case ["ws"]:
                self.websocket()
            case ["feed"]:
                self.feed()
            case _:
                raise Refused(404, f"there is no {self.path}")

    def echo(self):
        digest, size = hashlib.sha256(), 0
        for piece in self.pieces():
            digest.update(piece)
            size += len(piece)
        self.answer({
            "site": self.server.site,
            "method": self.command,
            "target": self.path,
            "size": size,
            "digest": digest.hexdigest(),
            "trailers": self.trailers,
        })

    def with_trailers(self, trailers, connection=None):
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.send_header("Trailer", ", ".join(trailer.split(":")[0] for trailer in trailers))
        if connection:
            self.send_header("Connection", connection)
        self.end_headers()
        last = "".join(f"{trailer}\r\n" for trailer in trailers).encode()
        self.wfile.write(b"5\r\nhello\r\n6\r\n world\r\n0\r\n" + last + b"\r\n")
        self.wfile.flush()

    def bytes(self, count):
        self.send_response(200)
        self.send_header("Content-Length", str(count))
        self.end_headers()
        piece = bytes(PIECE)
        while count and self.command != "HEAD":
            self.wfile.write(piece[:count])
            count -= min(count, PIECE)
        self.wfile.flush()

    def feed(self):
        self.send_response(101)
        self.send_header("Upgrade", "feed")
        self.send_header("Connection", "Upgrade")
        self.end_headers()
        self.close_connection = True
        while True:
            self.wfile.write(b"word\n")
            self.wfile.flush()
            time.sleep(0.1)

    def websocket(self):
        key = self.headers.get("sec-websocket-key")
        if self.headers.get("upgrade", "").lower() != "websocket" or not key:
            raise Refused(426, "this is a WebSocket")
        accept = base64.b64encode(hashlib.sha1((key + WEBSOCKET).encode()).digest()).decode()
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", accept)
        self.end_headers()
        self.wfile.flush()
        self.close_connection = True
        while True:
            first, second = self.some(2)
            size = second & 0x7F
            if size == 126:
                (size,) = struct.unpack(">H", self.some(2))
            elif size == 127:
                raise Gone
            mask = self.some(4)
            text = bytes(byte ^ mask[n % 4] for n, byte in enumerate(self.some(size)))
            length = bytes([size]) if size < 126 else b"\x7e" + struct.pack(">H", size)
            self.wfile.write(bytes([first]) + length + text)
            self.wfile.flush()
            if first & 0x0F == 8:
                return
