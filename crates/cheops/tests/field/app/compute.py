"""A service like that of compute: what it boots has an image, and it asks the service of images for
it, each time.

- `POST /servers` `{"name", "image"}`: boots one. The answer says what was found of the image. With
  `"late": SECONDS` it asks for the image once more so long after the answer, and with `"late_at": COUNT` not
  before so many requests have come in; what it found is in `late` of the server then.
- `GET /servers`, `GET /servers/ID`, `DELETE /servers/ID`.

Of the request that it serves, it passes some headers on to the calls that it makes: those that the
mode names in `"passes"`, else those that OpenStack and traced applications do. As OpenStack does, it
passes `X-OpenStack-Request-Id` on if that is `req-` and a UUID in lower case, and makes one otherwise.
"""

import hashlib
import http.client
import json
import re
import threading
import time
import uuid
from urllib.parse import urlsplit

from base import PIECE, Handler, Refused

PASSES = (
    "traceparent",
    "tracestate",
    "baggage",
    "x-request-id",
    "x-openstack-request-id",
    "x-auth-token",
    "authorization",
)

OPENSTACK = re.compile("req-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Compute(Handler):
    """Needs of its server: `servers`, `image` (where images are) and `proxy` (the way there)."""

    @staticmethod
    def prepare(server, image, proxy):
        server.servers = {}
        server.image = urlsplit(image)
        server.proxy = urlsplit(proxy) if proxy else None

    def serve(self):
        match (self.command, self.segments):
            case ("POST", ["servers"]):
                self.boot()
            case ("GET", ["servers"]):
                self.answer({"servers": list(self.server.servers.values())})
            case ("GET", ["servers", id]) if id in self.server.servers:
                self.answer(self.server.servers[id])
            case ("DELETE", ["servers", id]) if id in self.server.servers:
                del self.server.servers[id]
                self.answer(status=204)
            case _:
                raise Refused(404, f"there is no {self.command} {self.path}")

    def boot(self):
        wanted = self.read_json()
        id = wanted["image"]
        image = json.loads(self.ask(f"/v2/images/{id}"))
        blob = self.ask(f"/v2/images/{id}/file")
        server = {
            "id": str(uuid.uuid4()),
            "name": wanted.get("name"),
            "site": self.server.site,
            "image": {name: image.get(name) for name in ("id", "name", "site")},
            "checksum": hashlib.sha256(blob).hexdigest(),
            "size": len(blob),
        }
        self.server.servers[server["id"]] = server
        headers = self.passed()
        self.answer(server, 202, [("Location", f"/servers/{server['id']}")])
        if "late" in wanted:
            late = (server, f"/v2/images/{id}", headers, wanted["late"], wanted.get("late_at", 0))
            threading.Thread(target=self.ask_late, args=late, daemon=True).start()

    def ask_late(self, server, path, headers, seconds, requests):
        """Asks once more, after the answer."""
        time.sleep(seconds)
        while len(self.server.log) < requests:
            time.sleep(0.01)
        try:
            server["late"] = json.loads(self.ask(path, headers))["site"]
        except Refused as refused:
            server["late"] = str(refused)

    def ask(self, path, headers=None):
        """What the service of images says."""
        image, proxy = self.server.image, self.server.proxy
        to = proxy or image
        connection = http.client.HTTPConnection(to.hostname, to.port or 80, timeout=60)
        try:
            target = f"{image.scheme}://{image.netloc}{path}" if proxy else path
            connection.request("GET", target, headers=headers or self.passed())
            response = connection.getresponse()
            body = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise Refused(502, f"the service of images: {error}") from error
        finally:
            connection.close()
        if response.status >= 300:
            why = body.decode("utf-8", "replace")
            raise Refused(response.status, f"the service of images said {response.status}: {why}")
        return body

    def passed(self):
        headers = {}
        for name in self.server.mode.get("passes", PASSES):
            value = self.headers.get(name)
            if name == "x-openstack-request-id" and not OPENSTACK.fullmatch(value or ""):
                value = f"req-{uuid.uuid4()}"
            if value is None:
                continue
            if name == "traceparent":
                # The call is a span of its own in the same trace.
                version, trace, _, flags = value.split("-")
                value = f"{version}-{trace}-{uuid.uuid4().hex[:16]}-{flags}"
            headers[name] = value
        return headers
