//! Tests of the command `simulate` with the embedded broker. All simulated clients are listed while
//! they are connected, and no client is listed afterwards.

use std::process::Stdio;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStderr};
use tokio::time::timeout;

use test_support::connector::{DEFAULT_ORG_ID, send_signal};
use test_support::{CONDITION_TIMEOUT, Certs, Connector, connector_command, eventually, unique_id};

/// A running `simulate` process and the progress lines on its standard error.
struct Fleet {
    child: Child,
    progress_lines: Lines<BufReader<ChildStderr>>,
}

impl Fleet {
    fn start(mqtt_address: &str, args: &str) -> Self {
        let mut child = connector_command()
            .args(["simulate", "--output", "json", "--mqtt", mqtt_address])
            .args(args.split_whitespace())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let progress_lines = BufReader::new(child.stderr.take().unwrap()).lines();
        Self {
            child,
            progress_lines,
        }
    }

    /// Waits for a progress line that contains `text`.
    async fn wait_for_progress(&mut self, text: &str) {
        let read_lines = async {
            while let Some(line) = self.progress_lines.next_line().await.unwrap() {
                if line.contains(text) {
                    return;
                }
            }
            panic!("simulate ended without printing {text:?}");
        };
        timeout(CONDITION_TIMEOUT, read_lines)
            .await
            .unwrap_or_else(|_| panic!("timed out waiting for {text:?}"));
    }

    /// Sends SIGINT and waits until the process exits. Returns the summary.
    async fn stop(self) -> Value {
        let pid = i32::try_from(self.child.id().unwrap()).unwrap();
        send_signal(pid, "INT");
        self.wait_for_exit().await
    }

    /// Waits until the process exits. Returns the summary, which must be the only standard output.
    async fn wait_for_exit(mut self) -> Value {
        let mut progress_lines = self.progress_lines;
        let print_progress = tokio::spawn(async move {
            while let Ok(Some(line)) = progress_lines.next_line().await {
                eprintln!("simulate: {line}");
            }
        });
        self.child.stdin = None;
        let output = timeout(CONDITION_TIMEOUT, self.child.wait_with_output()).await;
        let output = output
            .expect("timed out waiting for simulate to exit")
            .unwrap();
        print_progress.await.unwrap();
        assert!(output.status.success());
        serde_json::from_slice(&output.stdout).expect("standard output is one JSON object")
    }
}

/// Waits until the API lists exactly `client_count` clients.
async fn wait_for_listed_clients(connector: &Connector, client_count: usize) {
    let description = format!("{client_count} listed clients");
    eventually(&description, || async {
        (connector.list_client_ids(DEFAULT_ORG_ID).await.len() == client_count).then_some(())
    })
    .await;
}

/// Returns a count from the summary.
fn summary_count(summary: &Value, field: &str) -> u64 {
    summary[field]
        .as_u64()
        .unwrap_or_else(|| panic!("{field}: {summary}"))
}

#[tokio::test]
async fn clients_of_both_dialects_are_listed_and_the_summary_counts_are_exact() {
    let connector = Connector::start().await;
    let id_prefix = unique_id("mixed");
    let args = format!("--clients 200 --dialect mixed --id {id_prefix}");
    let fleet = Fleet::start(&connector.mqtt_address, &args);
    wait_for_listed_clients(&connector, 200).await;
    let listed_ids = connector.list_client_ids(DEFAULT_ORG_ID).await;
    assert!(
        listed_ids.contains(&format!("{id_prefix}-199")),
        "{listed_ids:?}"
    );
    let summary = fleet.stop().await;
    for (field, expected) in [
        ("clients", 200),
        ("peak_connected", 200),
        ("connects", 200),
        ("connections_lost", 0),
        ("storm_drops", 0),
        ("clean_disconnects", 200),
        // Each client publishes one online message. Each of the 100 status clients publishes one
        // offline message, and each of the 100 handshake clients publishes two.
        ("published", 200 + 100 + 2 * 100),
        ("acknowledged", 500),
        ("heartbeats", 100),
        ("received", 0),
    ] {
        assert_eq!(
            summary_count(&summary, field),
            expected,
            "{field}: {summary}"
        );
    }
    for field in ["connect_ms", "publish_ms"] {
        let percentile = |name: &str| summary[field][name].as_f64().unwrap();
        let (p50, p99, max) = (percentile("p50"), percentile("p99"), percentile("max"));
        assert!(0.0 < p50 && p50 <= p99 && p99 <= max, "{summary}");
    }
    wait_for_listed_clients(&connector, 0).await;
}

#[tokio::test]
async fn simulate_ends_after_its_duration_and_all_clients_disconnect() {
    let connector = Connector::start().await;
    let args = "--clients 20 --dialect mixed --update-rate 50 --duration 3s --quiet";
    let summary = Fleet::start(&connector.mqtt_address, args)
        .wait_for_exit()
        .await;
    assert_eq!(summary_count(&summary, "clients"), 20);
    let seconds = summary["duration_seconds"].as_f64().unwrap();
    assert!(seconds >= 3.0, "{summary}");
    // The clients publish 20 online messages, 30 offline messages, and updates.
    assert!(summary_count(&summary, "acknowledged") > 50, "{summary}");
    assert_eq!(summary["published"], summary["acknowledged"]);
    wait_for_listed_clients(&connector, 0).await;
}

#[tokio::test]
async fn after_a_reconnect_storm_the_connector_is_ready_and_all_clients_are_listed() {
    let connector = Connector::start().await;
    let args = "--clients 60 --dialect mixed --storm 2s";
    let mut fleet = Fleet::start(&connector.mqtt_address, args);
    fleet.wait_for_progress("reconnect storm ended").await;
    // The list can still contain clients whose connection was just dropped. Only the simulator
    // reports when all clients have reconnected.
    fleet.wait_for_progress("60/60 connected").await;
    wait_for_listed_clients(&connector, 60).await;
    assert_eq!(connector.readiness().await.0, 200);
    let summary = fleet.stop().await;
    assert!(summary_count(&summary, "storm_drops") >= 60, "{summary}");
    assert_eq!(summary_count(&summary, "clean_disconnects"), 60);
    wait_for_listed_clients(&connector, 0).await;
}

#[tokio::test]
async fn clients_that_reconnect_without_online_message_are_listed_because_of_their_heartbeat() {
    let connector = Connector::start().await;
    let args = "--clients 30 --storm 2s --misbehave no-online";
    let mut fleet = Fleet::start(&connector.mqtt_address, args);
    fleet.wait_for_progress("reconnect storm ended").await;
    fleet.wait_for_progress("30/30 connected").await;
    wait_for_listed_clients(&connector, 30).await;
    let summary = fleet.stop().await;
    assert!(summary_count(&summary, "storm_drops") >= 30, "{summary}");
    let online_messages =
        summary_count(&summary, "acknowledged") - summary_count(&summary, "clean_disconnects");
    assert!(
        online_messages < summary_count(&summary, "connects"),
        "{summary}"
    );
}

#[tokio::test]
async fn invalid_messages_become_dead_letters_and_all_clients_are_still_listed() {
    let connector = Connector::start().await;
    let args = "--clients 20 --dialect mixed --update-rate 40 --misbehave garbage \
                --misbehave burst --misbehave duplicate --misbehave clock-skew";
    let fleet = Fleet::start(&connector.mqtt_address, args);
    wait_for_listed_clients(&connector, 20).await;
    eventually("100 dead letters", || async {
        let dead_letters = connector
            .read_metric("cloud_connector_dead_letters_total", "")
            .await;
        (dead_letters > 100.0).then_some(())
    })
    .await;
    assert_eq!(connector.list_client_ids(DEFAULT_ORG_ID).await.len(), 20);
    assert_eq!(connector.readiness().await.0, 200);
    let summary = fleet.stop().await;
    assert_eq!(summary_count(&summary, "connections_lost"), 0, "{summary}");
    assert_eq!(summary["published"], summary["acknowledged"]);
    wait_for_listed_clients(&connector, 0).await;
}

#[tokio::test]
async fn simulate_issues_one_certificate_per_client_in_tls_dir_and_reuses_it() {
    let (certs, builder) = Certs::connector_builder().await;
    let connector = builder.start().await;
    let id_prefix = unique_id("tls");
    let address = connector.mqtts_address.as_ref().unwrap();
    let address = address.replace("127.0.0.1", "localhost");
    let certs_dir = certs.file_path("");
    let args = format!(
        "--clients 5 --id {id_prefix} --tls-dir {}",
        certs_dir.display()
    );
    let mut certificates = Vec::new();
    for _ in 0..2 {
        let fleet = Fleet::start(&address, &args);
        wait_for_listed_clients(&connector, 5).await;
        certificates.push(std::fs::read(certs.file_path(&format!("{id_prefix}-4.pem"))).unwrap());
        assert_eq!(summary_count(&fleet.stop().await, "clean_disconnects"), 5);
        wait_for_listed_clients(&connector, 0).await;
    }
    assert_eq!(certificates[0], certificates[1]);
}

#[tokio::test]
async fn handshakes_on_the_status_topic_are_recorded() {
    let builder = Connector::builder().set("mqtt.handshake_topics.status", "status");
    let connector = builder.start().await;
    let args = "--clients 5 --dialect handshake --handshake-status-topic";
    let fleet = Fleet::start(&connector.mqtt_address, args);
    wait_for_listed_clients(&connector, 5).await;
    let (status, body) = connector
        .send_message(
            &connector.list_client_ids(DEFAULT_ORG_ID).await[0],
            serde_json::json!({"directive": "echo"}),
        )
        .await;
    assert_eq!(status, 201, "{body}");
    let summary = fleet.stop().await;
    assert_eq!(summary_count(&summary, "clean_disconnects"), 5);
    wait_for_listed_clients(&connector, 0).await;
}

#[tokio::test]
async fn simulate_errors_are_one_line_with_the_fix() {
    let unreachable_args = "--mqtt 127.0.0.1:1 --duration 1s --quiet --clients 3";
    for (args, parts) in [
        (unreachable_args, ["no client could connect", "--mqtt"]),
        ("--clients 4000000000", ["open files", "ulimit -n"]),
        ("--mqtt nowhere", ["HOST:PORT", "127.0.0.1:1883"]),
        ("--tls-dir /nowhere", ["/nowhere", "certs init"]),
        ("--id a/b", ["--id", "choose another"]),
    ] {
        let output = connector_command()
            .arg("simulate")
            .args(args.split_whitespace())
            .output()
            .await
            .unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{args}: {stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        for part in parts {
            assert!(stderr.contains(part), "{args}: {stderr}");
        }
    }
}
