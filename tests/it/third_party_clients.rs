//! Clients of other makes: paho from PyPI, and the Mosquitto clients from Debian. `dev/prepare
//! test` installs them.

use std::path::Path;
use std::process::Stdio;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use crate::support::mqtt::{control_out, data_in, offline, online};
use crate::support::{Certs, Connector, TIMEOUT, unique};

/// A paho client that does as it is told.
struct Paho {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Paho {
    fn start(address: &str, client: &str, protocol: &str, tls: Option<&Certs>) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let (host, port) = address.rsplit_once(':').unwrap();
        let mut command = Command::new(root.join("target/venv/bin/python"));
        command
            .arg(root.join("tests/clients/paho_client.py"))
            .args(["--host", if tls.is_some() { "localhost" } else { host }])
            .args([
                "--port",
                port,
                "--client-id",
                client,
                "--protocol",
                protocol,
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        if let Some(certs) = tls {
            command.arg("--cafile").arg(certs.file("ca.pem"));
            command
                .arg("--certfile")
                .arg(certs.file(&format!("{client}.pem")));
            command
                .arg("--keyfile")
                .arg(certs.file(&format!("{client}.key")));
        }
        let mut child = command
            .spawn()
            .expect("target/venv is made by `dev/prepare test`");
        Self {
            stdin: child.stdin.take(),
            lines: BufReader::new(child.stdout.take().unwrap()).lines(),
            child,
        }
    }

    async fn event(&mut self, name: &str) -> Value {
        let read = async {
            loop {
                let line = self.lines.next_line().await.unwrap();
                let line = line.unwrap_or_else(|| panic!("paho ended before {name}"));
                let event: Value = serde_json::from_str(&line).unwrap();
                if event["event"] == name {
                    return event;
                }
                assert!(event["event"] != "failed", "{event}");
            }
        };
        timeout(TIMEOUT, read)
            .await
            .unwrap_or_else(|_| panic!("no {name}"))
    }

    async fn tell(&mut self, what: Value) {
        let line = format!("{what}\n");
        self.stdin
            .as_mut()
            .unwrap()
            .write_all(line.as_bytes())
            .await
            .unwrap();
    }
}

async fn paho_slice(connector: &Connector, mut paho: Paho, client: &str, is_v5: bool) {
    paho.event("connected").await;
    paho.event("online-acknowledged").await;
    assert!(connector.listed("10000").await.contains(&client.to_owned()));
    let (status, sent) = connector
        .send(
            client,
            json!({"directive": "echo", "metadata": {"a": "b"}, "payload": "hello"}),
        )
        .await;
    assert_eq!(status, 201);
    let message = paho.event("message").await;
    assert_eq!(message["topic"], data_in(client));
    assert_eq!(message["payload"]["message_id"], sent["id"]);
    assert_eq!(message["payload"]["content"], "hello");

    // What it may not do, it is told in a way that its own library understands.
    let forged = offline().to_string();
    paho.tell(
        json!({"do": "publish", "topic": control_out("another"), "payload": forged, "qos": 1}),
    )
    .await;
    let code = paho.event("published").await["reason_code"]
        .as_u64()
        .unwrap();
    assert_eq!(code, if is_v5 { 0x87 } else { 0 });
    paho.tell(json!({"do": "subscribe", "topic": "redhat/insights/+/data/in"}))
        .await;
    let codes = paho.event("subscribed").await;
    assert!(codes["reason_codes"][0].as_u64().unwrap() >= 128, "{codes}");
    // Still there, and still served.
    paho.tell(json!({"do": "publish", "topic": control_out(client), "payload": online().to_string(), "qos": 1}))
        .await;
    assert_eq!(paho.event("published").await["reason_code"], 0);

    // Its process dies without a word; its will speaks.
    drop(paho.stdin.take());
    paho.child.wait().await.unwrap();
    connector.wait_for(client, false).await;
}

#[tokio::test]
async fn paho_3_1_1_and_5_work() {
    let connector = Connector::start().await;
    for protocol in ["3.1.1", "5"] {
        let client = unique("paho");
        let paho = Paho::start(&connector.mqtt, &client, protocol, None);
        paho_slice(&connector, paho, &client, protocol == "5").await;
    }
}

#[tokio::test]
async fn paho_3_1_1_and_5_work_over_mtls() {
    let (certs, setup) = Certs::setup().await;
    let connector = setup.start().await;
    let address = connector.mqtts.clone().unwrap();
    for protocol in ["3.1.1", "5"] {
        let client = unique("paho-tls");
        certs.issue(&client).await;
        let paho = Paho::start(&address, &client, protocol, Some(&certs));
        paho_slice(&connector, paho, &client, protocol == "5").await;
    }
}

/// A Mosquitto client as `client`, with the will of a real one.
fn mosquitto(program: &str, address: &str, client: &str, version: &str) -> Command {
    let (host, port) = address.rsplit_once(':').unwrap();
    let mut command = Command::new(program);
    command
        .args([
            "-h", host, "-p", port, "-V", version, "-i", client, "-q", "1", "-d",
        ])
        .args(["--will-topic", &control_out(client), "--will-qos", "1"])
        .args(["--will-payload", &offline().to_string()])
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    command
}

#[tokio::test]
async fn the_mosquitto_clients_work() {
    let connector = Connector::start().await;
    for version in ["mqttv311", "mqttv5"] {
        // One connection that subscribes, says online, and prints the first message it is sent.
        let client = unique("mosquitto");
        let mut exchange = mosquitto("mosquitto_rr", &connector.mqtt, &client, version);
        exchange.args(["-t", &control_out(&client), "-e", &data_in(&client)]);
        exchange.args(["-m", &online().to_string()]);
        let exchange = exchange
            .spawn()
            .expect("mosquitto-clients: `dev/prepare test`");
        connector.wait_for(&client, true).await;
        let (status, sent) = connector.send(&client, json!({"directive": "echo"})).await;
        assert_eq!(status, 201);
        let done = timeout(TIMEOUT, exchange.wait_with_output())
            .await
            .unwrap()
            .unwrap();
        let said = String::from_utf8_lossy(&done.stdout).into_owned();
        assert!(said.contains(sent["id"].as_str().unwrap()), "{said}");
        connector.wait_for(&client, false).await;

        // Nobody can speak for another.
        let victim = unique("victim");
        let mut forged = mosquitto("mosquitto_pub", &connector.mqtt, &client, version);
        forged.args(["-t", &control_out(&victim), "-m", &online().to_string()]);
        let done = timeout(TIMEOUT, forged.output()).await.unwrap().unwrap();
        let said = String::from_utf8_lossy(&done.stdout).into_owned();
        assert!(said.contains("PUBACK"), "{said}");
        assert!(
            connector.listed("10000").await.is_empty(),
            "spoke for another"
        );

        // A listener that ends when its subscription is granted.
        let mut listener = mosquitto("mosquitto_sub", &connector.mqtt, &client, version);
        listener.args(["-E", "-t", &data_in(&client)]);
        let done = timeout(TIMEOUT, listener.output()).await.unwrap().unwrap();
        let said = String::from_utf8_lossy(&done.stdout).into_owned();
        assert!(done.status.success() && said.contains("SUBACK"), "{said}");
    }
}
