"""A mail server: python3 smtpd.py DIRECTORY PORT [CERTIFICATE KEY [wrapped]]

Writes each message into DIRECTORY as N.eml, with its envelope in front; one that has `take your time` in it
only when there is a file `now`. With a certificate it takes
mail only after STARTTLS, or `wrapped` in TLS from the beginning, from `ops` with the password `hush`.
"""

import asyncio
import pathlib
import signal
import ssl
import sys

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult


class Keep:
    def __init__(self, directory):
        self.directory = pathlib.Path(directory)
        self.count = 0

    async def handle_DATA(self, server, session, envelope):
        if b"refuse this" in envelope.content:
            return "550 not wanted"
        while b"take your time" in envelope.content and not (self.directory / "now").exists():
            (self.directory / "waits").touch()
            await asyncio.sleep(0.02)
        self.count += 1
        head = f"{envelope.mail_from} {','.join(envelope.rcpt_tos)} tls={bool(session.ssl)}\n"
        draft = self.directory / f"{self.count}.new"
        draft.write_bytes(head.encode() + envelope.content)
        draft.rename(self.directory / f"{self.count}.eml")
        return "250 kept"


def known(server, session, envelope, mechanism, data):
    return AuthResult(success=(data.login, data.password) == (b"ops", b"hush"))


directory, port, *protected = sys.argv[1:]
options, wrap = {}, {}
if protected:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*protected[:2])
    options = {"authenticator": known, "auth_required": True}
    if protected[2:]:
        wrap = {"ssl_context": context}
        options |= {"auth_require_tls": False}
    else:
        options |= {"tls_context": context, "require_starttls": True}


class Here(Controller):
    def factory(self):
        return SMTP(self.handler, **options)


controller = Here(Keep(directory), hostname="127.0.0.1", port=int(port), **wrap)
controller.start()
print(controller.server.sockets[0].getsockname()[1], flush=True)
signal.pause()
