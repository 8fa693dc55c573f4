//! `simulate` as a fleet: everybody is listed, whatever they do, and gone when they have left.

use std::process::Stdio;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStderr};
use tokio::time::timeout;

use crate::support::connector::{ORG, send_signal};
use crate::support::{Certs, Connector, TIMEOUT, eventually, program, unique};

/// A fleet that runs, and what it says of its progress.
struct Fleet {
    child: Child,
    progress: Lines<BufReader<ChildStderr>>,
}

impl Fleet {
    fn start(mqtt: &str, args: &str) -> Self {
        let mut child = program()
            .args(["simulate", "--output", "json", "--mqtt", mqtt])
            .args(args.split_whitespace())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let progress = BufReader::new(child.stderr.take().unwrap()).lines();
        Self { child, progress }
    }

    /// Waits for a line of its progress.
    async fn says(&mut self, part: &str) {
        let read = async {
            while let Some(line) = self.progress.next_line().await.unwrap() {
                if line.contains(part) {
                    return;
                }
            }
            panic!("it ended without {part:?}");
        };
        timeout(TIMEOUT, read)
            .await
            .expect("it says something else");
    }

    /// Ctrl-C, and the summary.
    async fn stop(self) -> Value {
        let pid = i32::try_from(self.child.id().unwrap()).unwrap();
        send_signal(pid, "INT");
        self.end().await
    }

    /// Waits for its end. The summary is all that it prints.
    async fn end(mut self) -> Value {
        let mut progress = self.progress;
        let reading = tokio::spawn(async move {
            while let Ok(Some(line)) = progress.next_line().await {
                eprintln!("simulate: {line}");
            }
        });
        self.child.stdin = None;
        let done = timeout(TIMEOUT, self.child.wait_with_output()).await;
        let done = done.expect("it does not end").unwrap();
        reading.await.unwrap();
        assert!(done.status.success());
        serde_json::from_slice(&done.stdout).expect("one JSON object and nothing else")
    }
}

async fn wait_for_listed(connector: &Connector, clients: usize) {
    let what = format!("{clients} clients listed");
    eventually(&what, || async {
        (connector.listed(ORG).await.len() == clients).then_some(())
    })
    .await;
}

fn number(summary: &Value, name: &str) -> u64 {
    summary[name]
        .as_u64()
        .unwrap_or_else(|| panic!("{name}: {summary}"))
}

#[tokio::test]
async fn a_mixed_fleet_is_listed_and_its_summary_is_right() {
    let connector = Connector::start().await;
    let name = unique("mixed");
    let args = format!("--clients 200 --dialect mixed --id {name}");
    let fleet = Fleet::start(&connector.mqtt, &args);
    wait_for_listed(&connector, 200).await;
    let listed = connector.listed(ORG).await;
    assert!(listed.contains(&format!("{name}-199")), "{listed:?}");
    let summary = fleet.stop().await;
    for (name, expected) in [
        ("clients", 200),
        ("connected_peak", 200),
        ("connects", 200),
        ("connection_losses", 0),
        ("connections_cut", 0),
        ("left_cleanly", 200),
        // Each comes once; in one dialect it leaves with one message, in the other with two.
        ("published", 200 + 100 + 2 * 100),
        ("acknowledged", 500),
        ("signs_of_life", 100),
        ("received", 0),
    ] {
        assert_eq!(number(&summary, name), expected, "{name}: {summary}");
    }
    for took in ["connect_ms", "publish_ms"] {
        let at = |share: &str| summary[took][share].as_f64().unwrap();
        assert!(at("p50") > 0.0 && at("p50") <= at("p99") && at("p99") <= at("max"));
    }
    wait_for_listed(&connector, 0).await;
}

#[tokio::test]
async fn it_ends_by_itself_after_its_duration_and_nobody_stays() {
    let connector = Connector::start().await;
    let args = "--clients 20 --dialect mixed --rate 50 --duration 3s --quiet";
    let summary = Fleet::start(&connector.mqtt, args).end().await;
    assert_eq!(number(&summary, "clients"), 20);
    assert!(summary["seconds"].as_f64().unwrap() >= 3.0, "{summary}");
    // They came, they left, and in between they reported changes.
    assert!(number(&summary, "acknowledged") > 50, "{summary}");
    assert_eq!(summary["published"], summary["acknowledged"]);
    wait_for_listed(&connector, 0).await;
}

#[tokio::test]
async fn after_a_storm_the_connector_is_ready_and_the_fleet_is_listed() {
    let connector = Connector::start().await;
    let args = "--clients 60 --dialect mixed --storm 2s";
    let mut fleet = Fleet::start(&connector.mqtt, args);
    fleet.says("the storm is over").await;
    // Rows of those that were cut last may stand for a moment: only the fleet knows who is back.
    fleet.says("60/60 connected").await;
    wait_for_listed(&connector, 60).await;
    assert_eq!(connector.readiness().await.0, 200);
    let summary = fleet.stop().await;
    assert!(number(&summary, "connections_cut") >= 60, "{summary}");
    assert_eq!(number(&summary, "left_cleanly"), 60);
    wait_for_listed(&connector, 0).await;
}

#[tokio::test]
async fn clients_that_say_online_only_once_are_listed_again_after_their_connection_was_cut() {
    let connector = Connector::start().await;
    let args = "--clients 30 --storm 2s --misbehave no-online";
    let mut fleet = Fleet::start(&connector.mqtt, args);
    fleet.says("the storm is over").await;
    fleet.says("30/30 connected").await;
    wait_for_listed(&connector, 30).await;
    let summary = fleet.stop().await;
    let count = |name| number(&summary, name);
    assert!(count("connections_cut") >= 30, "{summary}");
    let onlines = count("acknowledged") - count("left_cleanly");
    assert!(onlines < count("connects"), "{summary}");
}

#[tokio::test]
async fn garbage_becomes_dead_letters_and_costs_nobody_anything() {
    let connector = Connector::start().await;
    let args = "--clients 20 --dialect mixed --rate 40 --misbehave garbage --misbehave burst \
                --misbehave duplicate --misbehave lying-clock";
    let fleet = Fleet::start(&connector.mqtt, args);
    wait_for_listed(&connector, 20).await;
    eventually("dead letters", || async {
        let found = connector
            .metric("cloud_connector_dead_letters_total", "")
            .await;
        (found > 100.0).then_some(())
    })
    .await;
    assert_eq!(connector.listed(ORG).await.len(), 20);
    assert_eq!(connector.readiness().await.0, 200);
    let summary = fleet.stop().await;
    assert_eq!(number(&summary, "connection_losses"), 0, "{summary}");
    assert_eq!(summary["published"], summary["acknowledged"]);
    wait_for_listed(&connector, 0).await;
}

#[tokio::test]
async fn many_clients_have_a_certificate_each() {
    let (certs, setup) = Certs::setup().await;
    let connector = setup.start().await;
    let name = unique("tls");
    let address = connector.mqtts.as_ref().unwrap();
    let address = address.replace("127.0.0.1", "localhost");
    let dir = certs.file("");
    let args = format!("--clients 5 --id {name} --tls-dir {}", dir.display());
    for _ in 0..2 {
        // The second time they have their certificates.
        let fleet = Fleet::start(&address, &args);
        wait_for_listed(&connector, 5).await;
        assert!(certs.file(&format!("{name}-4.pem")).exists());
        assert_eq!(number(&fleet.stop().await, "left_cleanly"), 5);
        wait_for_listed(&connector, 0).await;
    }
}

#[tokio::test]
async fn handshakes_may_go_to_a_topic_of_their_own() {
    let setup = Connector::setup().set("mqtt.handshake_topics.status", "status");
    let connector = setup.start().await;
    let args = "--clients 5 --dialect handshake --handshake-status-topic";
    let fleet = Fleet::start(&connector.mqtt, args);
    wait_for_listed(&connector, 5).await;
    let (status, sent) = connector
        .send(
            &connector.listed(ORG).await[0],
            serde_json::json!({"directive": "echo"}),
        )
        .await;
    assert_eq!(status, 201, "{sent}");
    let summary = fleet.stop().await;
    assert_eq!(number(&summary, "left_cleanly"), 5);
    wait_for_listed(&connector, 0).await;
}

#[tokio::test]
async fn what_cannot_work_is_said_in_one_line_with_its_cure() {
    let nobody = "--mqtt 127.0.0.1:1 --duration 1s --quiet --clients 3";
    for (args, parts) in [
        (nobody, ["no client could connect", "--mqtt"]),
        ("--clients 4000000000", ["open files", "ulimit -n"]),
        ("--mqtt nowhere", ["HOST:PORT", "127.0.0.1:1883"]),
        ("--tls-dir /nowhere", ["/nowhere", "certs init"]),
        ("--id a/b", ["--id", "choose another"]),
    ] {
        let done = program()
            .arg("simulate")
            .args(args.split_whitespace())
            .output()
            .await
            .unwrap();
        let said = String::from_utf8(done.stderr).unwrap();
        assert_eq!(done.status.code(), Some(1), "{args}: {said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        for part in parts {
            assert!(said.contains(part), "{args}: {said}");
        }
    }
}
