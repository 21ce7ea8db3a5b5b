"""What the services of the test application have in common: HTTP/1.1 with kept connections, bodies
of any length in little memory, a log of what came in, and ways to fail on demand.

Paths that begin with `/_` are for the test, and neither logged nor made to fail:

- `GET /_log`: the requests that came in, as they came in; `DELETE /_log` empties it.
- `PUT /_mode`: how the service behaves from now on. `{"status": 503}` answers with that, `{"delay":
  0.5}` takes that long, `{"hold": true}` waits until the mode changes; with `"times": 2` only the
  next two requests do. `{}` is as usual. What else stands there is for the service itself.
"""

import json
import select
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

PIECE = 64 << 10
MOST_LOGGED = 20_000


class Refused(Exception):
    """A request that gets an answer other than the one it wanted."""

    def __init__(self, status, why):
        super().__init__(why)
        self.status = status


class Gone(Exception):
    """Whoever asked has gone before there was an answer."""


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512

    def __init__(self, address, handler, site):
        super().__init__(address, handler)
        self.site = site
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self.log = []
        self.mode = {}

    def handle_error(self, request, client_address):
        pass


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    # A client that stops in the middle is given up.
    timeout = 120

    def log_message(self, format, *arguments):
        pass

    # Every method comes this way.
    def __getattr__(self, name):
        if name.startswith("do_"):
            return self.begin
        raise AttributeError(name)

    def begin(self):
        url = urlsplit(self.path)
        self.segments = [unquote(segment) for segment in url.path.split("/") if segment]
        self.query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        self.answered = False
        self.unread = self.length()
        self.trailers = []
        try:
            if url.path == "/_log":
                self.show_log()
            elif url.path == "/_mode":
                self.set_mode()
            else:
                self.entry = self.note()
                self.behave()
                self.serve()
                self.entry["done"] = True
        except Refused as refused:
            self.answer({"error": str(refused)}, refused.status)
        except (Gone, ConnectionError, TimeoutError):
            if hasattr(self, "entry"):
                self.entry["gone"] = True
            self.close_connection = True
            return
        # The next request begins where this one's body ends.
        try:
            for _ in self.pieces():
                pass
        except (Gone, ConnectionError):
            self.close_connection = True

    # The log and the modes.

    def note(self):
        entry = {
            "method": self.command,
            "target": self.path,
            "from": self.client_address[0],
            "headers": {name.lower(): value for name, value in self.headers.items()},
            "count": len(self.headers.items()),
            "done": False,
            "gone": False,
        }
        with self.server.lock:
            self.server.log.append(entry)
            del self.server.log[:-MOST_LOGGED]
        return entry

    def show_log(self):
        with self.server.lock:
            if self.command == "DELETE":
                self.server.log.clear()
            log = list(self.server.log)
        self.answer({"log": log})

    def set_mode(self):
        mode = self.read_json() if self.unread else {}
        with self.server.lock:
            self.server.mode = mode
            self.server.changed.notify_all()
        self.answer(mode)

    def behave(self):
        with self.server.lock:
            mode = self.server.mode
            if "times" in mode:
                if mode["times"] <= 0:
                    return
                mode["times"] -= 1
        self.wait(lambda: False, mode.get("delay", 0))
        if mode.get("hold"):
            self.wait(lambda: self.server.mode is not mode)
        if "status" in mode:
            raise Refused(mode["status"], "told to fail")

    def wait(self, condition, most=120):
        """Waits until something is so, while whoever asks is there."""
        end = time.monotonic() + most
        there = select.poll()
        there.register(self.connection, select.POLLRDHUP)
        while not condition() and time.monotonic() < end:
            if there.poll(20):
                raise Gone

    # Bodies.

    def length(self):
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            return "chunked"
        return int(self.headers.get("content-length", 0))

    def pieces(self):
        """The body of the request, piece by piece."""
        if self.unread == "chunked":
            while size := int(self.line().split(b";")[0], 16):
                while size:
                    piece = self.some(min(size, PIECE))
                    size -= len(piece)
                    yield piece
                self.line()
            while (line := self.line()).strip():
                self.trailers.append(line.decode("latin-1").strip())
            self.unread = 0
        while self.unread:
            piece = self.some(min(self.unread, PIECE))
            self.unread -= len(piece)
            yield piece

    def some(self, most):
        piece = self.rfile.read(most)
        if len(piece) < most:
            raise Gone
        return piece

    def line(self):
        line = self.rfile.readline(PIECE)
        if not line:
            raise Gone
        return line

    def read(self):
        return b"".join(self.pieces())

    def read_json(self):
        try:
            return json.loads(self.read())
        except ValueError as error:
            raise Refused(400, f"the body is no JSON: {error}") from error

    # Answers.

    def answer(self, value=None, status=200, headers=()):
        body = b"" if value is None else json.dumps(value).encode()
        self.send_response(status)
        for name, text in headers:
            self.send_header(name, text)
        if value is not None:
            self.send_header("Content-Type", "application/json")
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        self.wfile.flush()
