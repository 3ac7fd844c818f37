"""Ports for servers that tests start as processes, which cannot be given a socket."""

import random
import socket

BELOW_OUTGOING = range(20_000, 32_000)
"""No system takes the local port of an outgoing connection from here: what is free stays free until the server has started."""


def free_port() -> int:
    """A port that nobody uses, drawn so that processes that ask at the same time get different ones."""
    draw = random.SystemRandom()
    while True:
        port = draw.choice(BELOW_OUTGOING)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
