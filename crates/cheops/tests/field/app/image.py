"""A service like that of images: it gives ids of its own to what it is told to make, and keeps all
in memory but for the files.

- `/v2/images` and `/v2/groups`: collections. POST makes, GET lists (`?limit=`, `?marker=`, `?name=`).
- `/v2/images/ID`: GET, PATCH (what is there and what comes are merged), PUT (replaced), DELETE.
- `/v2/images/ID/file`: PUT and GET of bytes.
- `/v2/images/ID/actions/NAME`: POST; the names of all that were done are part of what GET shows.
- `/kv/NAME`: the same with names that the client chooses: PUT, GET, PATCH, DELETE. POST makes nothing, and
  says so without an id.

Each thing says in `site` where it is. The mode `{"next": "relative"}` has links to next pages without a
path, `{"next": "same"}` such as lead to the page itself; `{"next": "header"}` has them in the header
`Link`, and `{"next": "elsewhere"}` there too, with another host. `{"page": 2}` gives two things at a time to
whoever does not say how many, and `{"filter": false}` lists all things, whatever their name.
"""

import hashlib
import itertools
import os
import tempfile
import uuid

from base import PIECE, Handler, Refused


class Image(Handler):
    """Needs of its server: `things`, `files` and `ids`."""

    @staticmethod
    def prepare(server, numbers):
        server.things = {"images": {}, "groups": {}, "kv": {}}
        server.files = tempfile.TemporaryDirectory(prefix="cheops-image-")
        if numbers is None:
            server.ids = iter(lambda: str(uuid.uuid4()), None)
        else:
            server.ids = itertools.count(numbers)

    def serve(self):
        match self.segments:
            case ["v2", ("images" | "groups") as kind]:
                self.collection(kind)
            case ["v2", ("images" | "groups") as kind, id]:
                self.thing(kind, id)
            case ["v2", "images", id, "file"]:
                self.file(id)
            case ["v2", ("images" | "groups") as kind, id, "actions", action]:
                self.act(kind, id, action)
            case ["kv"]:
                self.answer({"kv": list(self.server.things["kv"].values())})
            case ["kv", name]:
                self.named(name)
            case _:
                raise Refused(404, f"there is no {self.path}")

    def find(self, kind, id):
        found = self.server.things[kind].get(id)
        if found is None:
            raise Refused(404, f"there is no {id} in {kind} of {self.server.site}")
        return found

    def collection(self, kind):
        if self.command == "POST":
            self.make(kind)
        elif self.command in ("GET", "HEAD"):
            self.list(kind)
        else:
            raise Refused(405, "a collection has GET and POST")

    def make(self, kind):
        wanted = self.read_json()
        with self.server.lock:
            id = next(self.server.ids)
            path = f"/v2/{kind}/{id}"
            thing = {**wanted, "id": id, "site": self.server.site, "self": path}
            if kind == "images":
                thing |= {"status": "queued", "file": f"{path}/file"}
            self.server.things[kind][str(id)] = thing
        self.answer(thing, 201, [("Location", path)])

    def list(self, kind):
        with self.server.lock:
            things = list(self.server.things[kind].values())
        mode = self.server.mode
        if "name" in self.query and mode.get("filter", True):
            things = [thing for thing in things if thing.get("name") == self.query["name"]]
        page = {"first": f"/v2/{kind}", "total": len(things)}
        start = 0
        if "marker" in self.query:
            ids = [str(thing["id"]) for thing in things]
            start = ids.index(self.query["marker"]) + 1
        limit = int(self.query.get("limit", mode.get("page", len(things) or 1)))
        end = start + limit
        page[kind] = things[start:end]
        headers = [("Link", f'</v2/{kind}>; rel="first"')]
        if end < len(things):
            marker = things[end - 1]["id"]
            next = f"/v2/{kind}?limit={limit}&marker={marker}"
            match mode.get("next"):
                case "relative":
                    page["next"] = f"?limit={limit}&marker={marker}"
                case "same":
                    page["next"] = self.path
                case "header":
                    host = self.headers["Host"]
                    headers.append(("Link", f'<http://{host}{next}>; rel="next"; title="a, b"'))
                case "elsewhere":
                    headers.append(("Link", f"<http://elsewhere{next}>; rel=next"))
                case _:
                    page["next"] = next
        self.answer(page, headers=headers)

    def thing(self, kind, id):
        found = self.find(kind, id)
        if self.command in ("GET", "HEAD"):
            self.answer(found)
        elif self.command in ("PATCH", "PUT"):
            wanted = self.read_json()
            with self.server.lock:
                kept = {name: found[name] for name in ("id", "site", "self", "file") if name in found}
                if self.command == "PUT":
                    found.clear()
                merge(found, wanted)
                found |= kept
            self.answer(found)
        elif self.command == "DELETE":
            with self.server.lock:
                self.server.things[kind].pop(id, None)
            self.answer(status=204)
        else:
            raise Refused(405, "a resource has GET, PUT, PATCH and DELETE")

    def act(self, kind, id, action):
        found = self.find(kind, id)
        self.read()
        with self.server.lock:
            found.setdefault("actions", []).append(action)
        self.answer(found, 202)

    def file(self, id):
        found = self.find("images", id)
        path = os.path.join(self.server.files.name, id)
        if self.command == "PUT":
            digest, size = hashlib.sha256(), 0
            with open(path + ".part", "wb") as file:
                for piece in self.pieces():
                    file.write(piece)
                    digest.update(piece)
                    size += len(piece)
            os.replace(path + ".part", path)
            with self.server.lock:
                found |= {"status": "active", "size": size, "checksum": digest.hexdigest()}
            self.answer(status=204)
            return
        if found["status"] != "active":
            self.answer(status=204)
            return
        self.send_response(200)
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Content-Length", str(found["size"]))
        self.end_headers()
        if self.command == "HEAD":
            return
        with open(path, "rb") as file:
            while piece := file.read(PIECE):
                self.wfile.write(piece)
        self.wfile.flush()

    def named(self, name):
        if self.command == "PUT":
            wanted = self.read_json()
            with self.server.lock:
                is_new = name not in self.server.things["kv"]
                thing = {**wanted, "name": name, "site": self.server.site}
                self.server.things["kv"][name] = thing
            self.answer(thing, 201 if is_new else 200)
            return
        if self.command == "POST":
            self.read()
            self.answer({"touched": name})
            return
        self.thing("kv", name)


def merge(into, what):
    """Merges as RFC 7396 says."""
    for name, value in what.items():
        if value is None:
            into.pop(name, None)
        elif isinstance(value, dict) and isinstance(into.get(name), dict):
            merge(into[name], value)
        else:
            into[name] = value
