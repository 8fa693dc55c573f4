//! The MQTT client paho from PyPI, as a process that the tests control.

use std::path::Path;
use std::process::Stdio;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use test_support::{CONDITION_TIMEOUT, Certs};

/// A process that runs `paho_client.py` in `tests/clients`. It reads commands from stdin and writes
/// events to stdout.
pub struct PahoClient {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout_lines: Lines<BufReader<ChildStdout>>,
}

/// How paho connects to the broker.
#[derive(Clone, Copy)]
pub struct PahoOptions<'a> {
    pub address: &'a str,
    /// MQTT version: "3.1", "3.1.1" or "5".
    pub protocol: &'a str,
    /// "tcp" or "websockets".
    pub transport: &'a str,
    /// Certificates for TLS. The client uses the certificate with its id.
    pub certs: Option<&'a Certs>,
}

impl PahoClient {
    /// Starts the process. It connects, subscribes and publishes an online message.
    pub fn start(client_id: &str, options: PahoOptions<'_>) -> Self {
        let PahoOptions {
            address,
            protocol,
            transport,
            certs: tls,
        } = options;
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
        let (host, port) = address.rsplit_once(':').unwrap();
        let mut command = Command::new(root.join("target/venv/bin/python"));
        command
            .arg(root.join("crates/cloud-connector/tests/clients/paho_client.py"))
            .args(["--host", if tls.is_some() { "localhost" } else { host }])
            .args([
                "--port",
                port,
                "--client-id",
                client_id,
                "--protocol",
                protocol,
                "--transport",
                transport,
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        if let Some(certs) = tls {
            command.arg("--cafile").arg(certs.file_path("ca.pem"));
            command
                .arg("--certfile")
                .arg(certs.file_path(&format!("{client_id}.pem")));
            command
                .arg("--keyfile")
                .arg(certs.file_path(&format!("{client_id}.key")));
        }
        let mut child = command
            .spawn()
            .expect("target/venv is missing; run `dev/prepare test`");
        Self {
            stdin: child.stdin.take(),
            stdout_lines: BufReader::new(child.stdout.take().unwrap()).lines(),
            child,
        }
    }

    /// Reads events until an event has this name. Returns the event.
    pub async fn wait_for_event(&mut self, event_name: &str) -> Value {
        let read_events = async {
            loop {
                let line = self.stdout_lines.next_line().await.unwrap();
                let line =
                    line.unwrap_or_else(|| panic!("paho exited before the event {event_name}"));
                let event: Value = serde_json::from_str(&line).unwrap();
                if event["event"] == event_name {
                    return event;
                }
                assert!(event["event"] != "failed", "{event}");
            }
        };
        timeout(CONDITION_TIMEOUT, read_events)
            .await
            .unwrap_or_else(|_| panic!("timed out waiting for the event {event_name}"))
    }

    pub async fn send_command(&mut self, command: Value) {
        let line = format!("{command}\n");
        self.stdin
            .as_mut()
            .unwrap()
            .write_all(line.as_bytes())
            .await
            .unwrap();
    }

    /// Lets the process exit without DISCONNECT, so that the broker publishes the last will.
    pub async fn exit_without_disconnect(mut self) {
        drop(self.stdin.take());
        self.child.wait().await.unwrap();
    }
}
