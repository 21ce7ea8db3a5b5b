"""`--scope` for the `openstack` client: says where each service of a command runs.

    openstack --scope 'image: site1 & site2' image create debian --file debian.qcow2

The scope goes along as the header `X-Scope` with every request of the command, as agents of Cheops
read it: with or without braces, or as a JSON object. `OS_SCOPE` in the environment does the same.

The client's library, openstacksdk, takes every option and every variable that begins with `OS_` for a
setting of its own, and calls `str.format` on it: a scope in braces would raise `KeyError`. So the scope
is taken out of both before the library reads them.

A scope in the path of the endpoint would not do for this client: it asks a service for its versions
first, and goes on at the address that the service gives, which is without that path.
"""

import argparse
import os

from keystoneauth1 import session

# What the client wants to know of an extension.
API_NAME = "cheops"
API_VERSION_OPTION = "os_cheops_api_version"
API_VERSIONS = {"1": "cheops_openstack"}
DEFAULT_API_VERSION = "1"


def make_client(instance):
    """There is no service of our own to be a client of."""


def build_option_parser(parser):
    parser.add_argument(
        "--scope",
        metavar="<scope>",
        action=Scope,
        default=argparse.SUPPRESS,
        help="Where each service runs, like 'compute: site1, image: site1 & site2' (Env: OS_SCOPE)",
    )
    scope = os.environ.pop("OS_SCOPE", "")
    if scope:
        send_with(scope)
    return parser


class Scope(argparse.Action):
    """Takes effect as it is read, since sessions are made later. It leaves nothing among the options."""

    def __call__(self, parser, namespace, scope, option_string=None):
        send_with(scope)


def send_with(scope):
    """Has every session that is made from now on send the scope."""
    begin = session.Session.__init__
    # A header field has one line, and a JSON object may have several. Agents read UTF-8, and the HTTP library
    # encodes header fields as Latin-1.
    value = " ".join(scope.split()).encode("utf-8").decode("latin-1")

    def begin_with_scope(self, *arguments, **named):
        begin(self, *arguments, **named)
        self.additional_headers["X-Scope"] = value

    session.Session.__init__ = begin_with_scope
