"""A third-party MQTT client (paho) that the integration tests control.

The client connects with a last will, subscribes to its own topics and publishes an online message. Then it
executes the commands of the test.

The test reads events from the stdout of this process and writes commands to its stdin, one JSON object per
line.

    events    {"event": "connected"}
              {"event": "subscribed", "reason_codes": [1, 1]}    128 or more: rejected
              {"event": "online-acknowledged"}
              {"event": "message", "topic": "...", "payload": ...}
              {"event": "published", "reason_code": 0}
              {"event": "refused", "reason": "..."}              then exit code 3
              {"event": "disconnected", "reason": "..."}         then exit code 4
              {"event": "failed", "reason": "..."}               then exit code 5

    commands  {"do": "publish", "topic": "...", "payload": "...", "qos": 1}
              {"do": "subscribe", "topic": "..."}
              {"do": "disconnect"}                               then exit code 0

When stdin closes, the process exits without an MQTT DISCONNECT. The broker then publishes the last will.
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

PROTOCOLS = {"3.1": mqtt.MQTTv31, "3.1.1": mqtt.MQTTv311, "5": mqtt.MQTTv5}

# The network thread and the main thread both print lines. Without the lock, the lines could be mixed.
_output_lock = threading.Lock()


def print_event(event, **fields):
    line = json.dumps({"event": event, **fields}) + "\n"
    with _output_lock:
        sys.stdout.write(line)
        sys.stdout.flush()


def exit_now(code):
    # os._exit ends the process at once. In a callback, sys.exit would end only the calling thread, and the
    # library would send a DISCONNECT.
    os._exit(code)


def fail(reason):
    print_event("failed", reason=reason)
    exit_now(EXIT_FAILED)


def connection_status_message(content):
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


def offline_message():
    return connection_status_message(
        {"state": "offline", "dispatchers": None, "canonical_facts": None}
    )


def online_message():
    return connection_status_message(
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


class TestClient:
    def __init__(self, options):
        self.options = options
        self.topic_prefix = f"{options.prefix}/{options.client_id}"
        self.is_connected = False
        self.is_disconnecting = False
        # Results that the network thread passes to the main thread, as tuples (kind, message id, value). The
        # main thread waits for one operation at a time.
        self.results = queue.Queue()
        self.client = self.create_client()

    def create_client(self):
        options = self.options
        is_v5 = options.protocol == "5"
        client = mqtt.Client(
            mqtt.CallbackAPIVersion.VERSION2,
            client_id=options.client_id,
            # For MQTT 5, the library expects this option as an argument of connect().
            clean_session=None if is_v5 else True,
            protocol=PROTOCOLS[options.protocol],
            transport=options.transport,
            # The client must not reconnect, because a test must observe a lost connection.
            reconnect_on_failure=False,
        )
        client.on_connect = self.on_connect
        client.on_disconnect = self.on_disconnect
        client.on_subscribe = self.on_subscribe
        client.on_publish = self.on_publish
        client.on_message = self.on_message
        client.will_set(f"{self.topic_prefix}/control/out", offline_message(), qos=1)
        if options.cafile:
            client.tls_set(
                ca_certs=options.cafile,
                certfile=options.certfile,
                keyfile=options.keyfile,
            )
        return client

    # The network thread calls the following methods.

    def on_connect(self, _client, _userdata, _flags, reason_code, _properties):
        if reason_code.is_failure:
            print_event("refused", reason=str(reason_code))
            exit_now(EXIT_REFUSED)
        self.is_connected = True
        self.results.put(("connect", None, None))

    def on_disconnect(self, _client, _userdata, _flags, reason_code, _properties):
        if self.is_disconnecting:
            self.results.put(("disconnect", None, None))
        elif self.is_connected:
            print_event("disconnected", reason=str(reason_code))
            exit_now(EXIT_DISCONNECTED)
        else:
            # A broker may close the connection without a CONNACK. For example, this happens with TLS 1.3 if
            # the broker rejects the client certificate.
            print_event("refused", reason=str(reason_code))
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
        print_event("message", topic=message.topic, payload=payload)

    # The main thread calls the following methods.

    def wait_for(self, kind, mid=None):
        try:
            received_kind, received_mid, value = self.results.get(timeout=RESPONSE_TIMEOUT_SECONDS)
        except queue.Empty:
            fail(f"no response to {kind} within {RESPONSE_TIMEOUT_SECONDS} s")
        if (received_kind, received_mid) != (kind, mid):
            fail(f"waited for {kind} {mid}, received {received_kind} {received_mid}")
        return value

    def connect(self):
        arguments = {"clean_start": True} if self.options.protocol == "5" else {}
        try:
            self.client.connect(
                self.options.host, self.options.port, keepalive=30, **arguments
            )
        except OSError as error:  # TLS errors are also OSErrors
            print_event("refused", reason=str(error))
            exit_now(EXIT_REFUSED)
        self.client.loop_start()
        self.wait_for("connect")
        print_event("connected")

    def subscribe(self, *topics):
        result, mid = self.client.subscribe([(topic, 1) for topic in topics])
        if result != mqtt.MQTT_ERR_SUCCESS:
            fail(f"subscribe: {mqtt.error_string(result)}")
        print_event("subscribed", reason_codes=self.wait_for("subscribe", mid))

    def publish(self, topic, payload, qos):
        sent = self.client.publish(topic, payload, qos=qos)
        if sent.rc != mqtt.MQTT_ERR_SUCCESS:
            fail(f"publish: {mqtt.error_string(sent.rc)}")
        return self.wait_for("publish", sent.mid)

    def go_online(self):
        self.connect()
        self.subscribe(f"{self.topic_prefix}/control/in", f"{self.topic_prefix}/data/in")
        reason_code = self.publish(f"{self.topic_prefix}/control/out", online_message(), 1)
        if reason_code >= 128:
            fail(f"the online message was rejected with reason code {reason_code}")
        print_event("online-acknowledged")

    def disconnect(self):
        self.is_disconnecting = True
        self.client.disconnect()
        self.wait_for("disconnect")
        exit_now(0)

    def execute(self, command):
        action = command.get("do")
        if action == "publish":
            reason_code = self.publish(
                command["topic"], command["payload"], command.get("qos", 1)
            )
            print_event("published", reason_code=reason_code)
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
    parser.add_argument("--protocol", choices=list(PROTOCOLS), required=True)
    parser.add_argument("--transport", choices=["tcp", "websockets"], default="tcp")
    parser.add_argument("--prefix", default="redhat/insights")
    parser.add_argument("--cafile")
    parser.add_argument("--certfile")
    parser.add_argument("--keyfile")
    return parser.parse_args()


def main():
    # The test normally ends this process. If the test is interrupted, this timer ends the process.
    run_timeout = threading.Timer(
        MAX_RUN_SECONDS, fail, [f"still running after {MAX_RUN_SECONDS} s"]
    )
    run_timeout.daemon = True
    client = TestClient(parse_options())
    run_timeout.start()

    client.go_online()
    for line in sys.stdin:
        if line.strip():
            client.execute(json.loads(line))
    exit_now(0)


if __name__ == "__main__":
    try:
        main()
    except Exception as error:
        # `fail` ends the process at once. At a normal exit, the network thread would send a DISCONNECT, and the
        # test would observe an orderly disconnect.
        fail(f"{type(error).__name__}: {error}")
