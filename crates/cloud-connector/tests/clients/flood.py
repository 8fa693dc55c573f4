"""Sends as fast as possible to one port after the other, and prints the number of bytes that each port received
in two seconds.

The test runs this program in a network namespace with the packet filter for Mosquitto.
"""

import json
import socket
import sys
import threading
import time

DURATION_SECONDS = 2


def count_received_bytes(listener, counts, index):
    connection, _ = listener.accept()
    with connection:
        while data := connection.recv(1 << 20):
            counts[index] += len(data)


def flood(port):
    counts = [0]
    listener = socket.create_server(("127.0.0.1", port))
    receiver = threading.Thread(target=count_received_bytes, args=(listener, counts, 0), daemon=True)
    receiver.start()
    sender = socket.create_connection(("127.0.0.1", port))
    sender.settimeout(0.2)
    chunk = b"x" * 65536
    deadline = time.monotonic() + DURATION_SECONDS
    while time.monotonic() < deadline:
        try:
            sender.send(chunk)
        except TimeoutError:
            pass
    return counts[0]


print(json.dumps({port: flood(int(port)) for port in sys.argv[1:]}))
