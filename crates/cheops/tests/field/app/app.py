"""An application of several services, as small as one can be that is real: `image`, `compute`, which
asks `image` on every boot, and `echo`. It knows nothing of sites but the name of its own, and nothing
of Cheops.

    app.py image PORT --site NAME [--numbers FIRST]
    app.py compute PORT --site NAME --image URL [--proxy URL]
    app.py echo PORT --site NAME

It needs nothing but Python's standard library.
"""

import argparse

from base import Server
from compute import Compute
from echo import Echo
from image import Image

arguments = argparse.ArgumentParser(description=__doc__)
arguments.add_argument("service", choices=["image", "compute", "echo"])
arguments.add_argument("port", type=int)
arguments.add_argument("--bind", default="0.0.0.0")
arguments.add_argument("--site", default="here")
arguments.add_argument("--numbers", type=int, help="ids are numbers, from this one on")
arguments.add_argument("--image", default="http://127.0.0.1:19292", help="where images are")
arguments.add_argument("--proxy", help="by way of which calls are made")
told = arguments.parse_args()

handler = {"image": Image, "compute": Compute, "echo": Echo}[told.service]
server = Server((told.bind, told.port), handler, told.site)
if told.service == "image":
    Image.prepare(server, told.numbers)
if told.service == "compute":
    Compute.prepare(server, told.image, told.proxy)
server.serve_forever()
