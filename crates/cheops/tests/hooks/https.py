"""A receiver of web hooks that speaks TLS: python3 https.py FILE CERTIFICATE KEY

Writes each body into FILE, one a line.
"""

import http.server
import ssl
import sys

file, certificate, key = sys.argv[1:]


class Take(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with open(file, "ab") as told:
            told.write(body + b"\n")
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Take)
context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
context.load_cert_chain(certificate, key)
server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_address[1], flush=True)
server.serve_forever()
