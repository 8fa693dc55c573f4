"""A third-party MQTT client (paho), controlled by the integration tests.

It connects with a last will, subscribes to its own topics and publishes an online message. Then it executes
the commands of the test.

The test reads events from stdout and writes commands to stdin, one JSON object
per line.

    events    {"event": "connected"}
              {"event": "subscribed", "reason_codes": [1, 1]}    128 and above: rejected
              {"event": "online-acknowledged"}
              {"event": "message", "topic": "...", "payload": ...}
              {"event": "published", "reason_code": 0}
              {"event": "refused", "reason": "..."}              then exit code 3
              {"event": "disconnected", "reason": "..."}         then exit code 4
              {"event": "failed", "reason": "..."}               then exit code 5

    commands  {"do": "publish", "topic": "...", "payload": "...", "qos": 1}
              {"do": "subscribe", "topic": "..."}
              {"do": "disconnect"}                               then exit code 0

When stdin closes, the process exits without an MQTT DISCONNECT, so that the broker publishes the last will.
"""

import argparse
import json
import os
import queue
import sys
import threading
import uuid
from datetime import datetime, timezone

import paho.mqtt
import paho.mqtt.client as mqtt

MAX_RUN_SECONDS = 120
RESPONSE_TIMEOUT_SECONDS = 20

EXIT_REFUSED = 3
EXIT_DISCONNECTED = 4
EXIT_FAILED = 5

# Both the network thread and the main thread print lines.
_output = threading.Lock()


def report(event, **fields):
    line = json.dumps({"event": event, **fields}) + "\n"
    with _output:
        sys.stdout.write(line)
        sys.stdout.flush()


def exit_now(code):
    # In a callback, sys.exit would end only the calling thread, and the library would send a DISCONNECT.
    os._exit(code)


def fail(reason):
    report("failed", reason=reason)
    exit_now(EXIT_FAILED)


def connection_status(content):
    sent = datetime.now(timezone.utc).isoformat().replace("+00:00", "Z")
    return json.dumps(
        {
            "type": "connection-status",
            "message_id": str(uuid.uuid4()),
            "response_to": "",
            "version": 1,
            "sent": sent,
            "content": content,
        }
    )


def offline():
    return connection_status(
        {"state": "offline", "dispatchers": None, "canonical_facts": None}
    )


def online():
    return connection_status(
        {
            "state": "online",
            "canonical_facts": {
                "insights_id": str(uuid.uuid4()),
                "fqdn": "paho.example",
            },
            "dispatchers": {"echo": {}},
            "tags": {"make": "paho"},
            "client_name": "paho",
            "client_version": paho.mqtt.__version__,
        }
    )


class Machine:
    def __init__(self, options):
        self.options = options
        self.topics = f"{options.prefix}/{options.client_id}"
        self.connected = False
        self.disconnecting = False
        # Results from the network thread for the main thread, as (kind, mid, value). The main thread has
        # one operation in flight at a time.
        self.results = queue.Queue()
        self.client = self.create_client()

    def create_client(self):
        options = self.options
        is_v5 = options.protocol == "5"
        client = mqtt.Client(
            mqtt.CallbackAPIVersion.VERSION2,
            client_id=options.client_id,
            # For MQTT 5, the library expects this option in connect().
            clean_session=None if is_v5 else True,
            protocol=mqtt.MQTTv5 if is_v5 else mqtt.MQTTv311,
            # A test must observe a lost connection.
            reconnect_on_failure=False,
        )
        client.on_connect = self.on_connect
        client.on_disconnect = self.on_disconnect
        client.on_subscribe = self.on_subscribe
        client.on_publish = self.on_publish
        client.on_message = self.on_message
        client.will_set(f"{self.topics}/control/out", offline(), qos=1)
        if options.cafile:
            client.tls_set(
                ca_certs=options.cafile,
                certfile=options.certfile,
                keyfile=options.keyfile,
            )
        return client

    # Called by the network thread.

    def on_connect(self, _client, _userdata, _flags, reason_code, _properties):
        if reason_code.is_failure:
            report("refused", reason=str(reason_code))
            exit_now(EXIT_REFUSED)
        self.connected = True
        self.results.put(("connect", None, None))

    def on_disconnect(self, _client, _userdata, _flags, reason_code, _properties):
        if self.disconnecting:
            self.results.put(("disconnect", None, None))
        elif self.connected:
            report("disconnected", reason=str(reason_code))
            exit_now(EXIT_DISCONNECTED)
        else:
            # A broker may close the connection without a CONNACK, for example if it rejects a client
            # certificate with TLS 1.3.
            report("refused", reason=str(reason_code))
            exit_now(EXIT_REFUSED)

    def on_subscribe(self, _client, _userdata, mid, reason_codes, _properties):
        self.results.put(("subscribe", mid, [code.value for code in reason_codes]))

    def on_publish(self, _client, _userdata, mid, reason_code, _properties):
        self.results.put(("publish", mid, reason_code.value))

    def on_message(self, _client, _userdata, message):
        text = message.payload.decode("utf-8", errors="replace")
        try:
            payload = json.loads(text)
        except ValueError:
            payload = text
        report("message", topic=message.topic, payload=payload)

    # Called by the main thread.

    def wait_for(self, kind, mid=None):
        try:
            got_kind, got_mid, value = self.results.get(timeout=RESPONSE_TIMEOUT_SECONDS)
        except queue.Empty:
            fail(f"no response to {kind} within {RESPONSE_TIMEOUT_SECONDS} s")
        if (got_kind, got_mid) != (kind, mid):
            fail(f"waited for {kind} {mid}, got {got_kind} {got_mid}")
        return value

    def connect(self):
        arguments = {"clean_start": True} if self.options.protocol == "5" else {}
        try:
            self.client.connect(
                self.options.host, self.options.port, keepalive=30, **arguments
            )
        except OSError as error:  # includes TLS errors
            report("refused", reason=str(error))
            exit_now(EXIT_REFUSED)
        self.client.loop_start()
        self.wait_for("connect")
        report("connected")

    def subscribe(self, *topics):
        result, mid = self.client.subscribe([(topic, 1) for topic in topics])
        if result != mqtt.MQTT_ERR_SUCCESS:
            fail(f"subscribe: {mqtt.error_string(result)}")
        report("subscribed", reason_codes=self.wait_for("subscribe", mid))

    def publish(self, topic, payload, qos):
        sent = self.client.publish(topic, payload, qos=qos)
        if sent.rc != mqtt.MQTT_ERR_SUCCESS:
            fail(f"publish: {mqtt.error_string(sent.rc)}")
        return self.wait_for("publish", sent.mid)

    def go_online(self):
        self.connect()
        self.subscribe(f"{self.topics}/control/in", f"{self.topics}/data/in")
        reason_code = self.publish(f"{self.topics}/control/out", online(), 1)
        if reason_code >= 128:
            fail(f"the online message was rejected with reason code {reason_code}")
        report("online-acknowledged")

    def disconnect(self):
        self.disconnecting = True
        self.client.disconnect()
        self.wait_for("disconnect")
        exit_now(0)

    def execute(self, command):
        action = command.get("do")
        if action == "publish":
            reason_code = self.publish(
                command["topic"], command["payload"], command.get("qos", 1)
            )
            report("published", reason_code=reason_code)
        elif action == "subscribe":
            self.subscribe(command["topic"])
        elif action == "disconnect":
            self.disconnect()
        else:
            fail(f"unknown command: {action!r}")


def parse_options():
    parser = argparse.ArgumentParser(description="MQTT client for the tests")
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--client-id", required=True)
    parser.add_argument("--protocol", choices=["3.1.1", "5"], required=True)
    parser.add_argument("--prefix", default="redhat/insights")
    parser.add_argument("--cafile")
    parser.add_argument("--certfile")
    parser.add_argument("--keyfile")
    return parser.parse_args()


def main():
    # An interrupted test must not leave this process running.
    limit = threading.Timer(
        MAX_RUN_SECONDS, fail, [f"still running after {MAX_RUN_SECONDS} s"]
    )
    limit.daemon = True
    machine = Machine(parse_options())
    limit.start()

    machine.go_online()
    for line in sys.stdin:
        if line.strip():
            machine.execute(json.loads(line))
    exit_now(0)


if __name__ == "__main__":
    try:
        main()
    except Exception as error:
        # A normal exit would let the network thread send a DISCONNECT, and the test would see an orderly
        # disconnect.
        fail(f"{type(error).__name__}: {error}")
