"""`--scope` for the `openstack` client: says where each service of a command runs.

    openstack --scope 'image: site1 & site2' image create debian --file debian.qcow2

The scope goes along as the header `X-Scope` with every request of the command, as agents of Cheops
read it. `OS_SCOPE` in the environment does the same.

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
        help="Where each service runs, like 'compute: site1, image: site1 & site2' (Env: OS_SCOPE)",
    )
    if os.environ.get("OS_SCOPE"):
        send_with(os.environ["OS_SCOPE"])
    return parser


class Scope(argparse.Action):
    """Takes effect as it is read: sessions are made later."""

    def __call__(self, parser, namespace, scope, option_string=None):
        setattr(namespace, self.dest, scope)
        send_with(scope)


def send_with(scope):
    """Has every session that is made from now on send the scope."""
    begin = session.Session.__init__

    def begin_with_scope(self, *arguments, **named):
        begin(self, *arguments, **named)
        self.additional_headers["X-Scope"] = scope

    session.Session.__init__ = begin_with_scope
