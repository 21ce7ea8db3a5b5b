"""A small IRC server: python3 ircd.py FILE PORT PASSWORD [CERTIFICATE KEY]

With a certificate it speaks TLS, and nothing else. One channel, #ops. Each line that is said there is written into FILE with the name of who said it. Speaks
as much of RFC 2812 as a client needs, asks for signs of life, and has the name `cheops` taken.
"""

import socketserver
import ssl
import sys

file, port, password, *protected = sys.argv[1:]


class Client(socketserver.StreamRequestHandler):
    def say(self, line):
        self.wfile.write(f"{line}\r\n".encode())

    def handle(self):
        nick = user = given = None
        welcomed = joined = False
        for line in self.rfile:
            words = line.decode().rstrip("\r\n")
            verb, _, rest = words.partition(" ")
            if verb == "PASS":
                given = rest
            elif verb == "NICK":
                if rest == "cheops":
                    self.say(":irc 433 * cheops :Nickname is already in use")
                else:
                    nick = rest
            elif verb == "USER":
                user = rest
            elif verb == "JOIN" and welcomed:
                joined = rest == "#ops"
                self.say(f":{nick} JOIN {rest}")
                self.say(f":irc 353 {nick} = {rest} :{nick}")
                self.say("PING :alive")
                self.say(f":irc 366 {nick} {rest} :End")
            elif verb == "PONG":
                assert rest == ":alive", rest
            elif verb == "PING":
                self.say(f":irc PONG irc {rest}")
            elif verb == "PRIVMSG":
                where, _, text = rest.partition(" :")
                if joined and where == "#ops":
                    with open(file, "a") as said:
                        said.write(f"{nick}: {text}\n")
                else:
                    self.say(f":irc 404 {nick} {where} :Cannot send to channel")
            elif verb == "QUIT":
                return
            if nick and user and not welcomed:
                if given != password:
                    self.say(f":irc 464 {nick} :Password incorrect")
                    return
                welcomed = True
                self.say(f":irc 001 {nick} :Welcome")
                self.say(f":irc 422 {nick} :MOTD File is missing")


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


with Server(("127.0.0.1", int(port)), Client) as server:
    if protected:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*protected)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    print(server.server_address[1], flush=True)
    server.serve_forever()
