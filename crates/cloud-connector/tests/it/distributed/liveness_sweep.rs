//! The liveness sweep ends exactly the connections whose clients are gone.
//!
//! `make sweep-tests` runs the first test with 5,000 clients and longer times.

use std::collections::BTreeSet;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sqlx::{PgConnection, Row as _};

use test_support::cluster::{Cluster, ConnectorProcess};
use test_support::mqtt::{Connect, RawClient, control_out_topic, data_out_topic, online_message};
use test_support::{connector_command, unique_id};

/// Time for a condition that needs a pass of the sweep. A pass includes the recording progress, which is
/// stored every few seconds.
const PASS_TIMEOUT: Duration = Duration::from_mins(4);

#[expect(
    clippy::disallowed_methods,
    reason = "the make target selects the size"
)]
fn is_full_size_run() -> bool {
    std::env::var_os("FULL_SIZE_SWEEP_TESTS").is_some()
}

/// Waits until a query returns a number for which `is_reached` is true.
async fn wait_for_count(
    database: &mut PgConnection,
    query: &'static str,
    timeout: Duration,
    is_reached: impl Fn(i64) -> bool,
) {
    let deadline = Instant::now() + timeout;
    loop {
        let count: i64 = sqlx::query_scalar(query)
            .fetch_one(&mut *database)
            .await
            .unwrap();
        if is_reached(count) {
            return;
        }
        assert!(
            Instant::now() < deadline,
            "{count} after {timeout:?}: {query}"
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn wait_for_metric(process: &ConnectorProcess, name: &str, label: &str, value: f64) {
    let deadline = Instant::now() + PASS_TIMEOUT;
    while process.read_metric(name, label).await < value {
        assert!(Instant::now() < deadline, "{name} {label} is below {value}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

const CONNECTED: &str = "SELECT count(*) FROM connections";
const EXPIRED: &str = "SELECT count(*) FROM disconnected_clients WHERE reason = 'expired'";

async fn client_ids(database: &mut PgConnection, query: &'static str) -> BTreeSet<String> {
    let rows = sqlx::query(query).fetch_all(database).await.unwrap();
    rows.iter().map(|row| row.get("client_id")).collect()
}

/// The clients whose connection the sweep has ended, also if they are connected again.
async fn ever_expired(database: &mut PgConnection) -> BTreeSet<String> {
    let query = "SELECT DISTINCT client_id FROM presence_history WHERE reason = 'expired'";
    client_ids(database, query).await
}

/// Starts a fleet of simulated clients, which answer pings and reconnect. Dropping the value kills it.
fn start_fleet(cluster: &Cluster, id: &str, count: u32) -> tokio::process::Child {
    let address = format!("127.0.0.1:{}", cluster.mosquitto.port);
    connector_command()
        .args(["simulate", "--mqtt", &address, "--id", id, "--quiet"])
        .args(["--clients", &count.to_string()])
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

/// Connects a client that never answers a ping.
async fn connect_silent_client(cluster: &Cluster, client_id: &str) -> RawClient {
    let address = format!("127.0.0.1:{}", cluster.mosquitto.port);
    let connect = Connect::new(client_id).without_keep_alive();
    let mut client = RawClient::connect(&address, &connect).await;
    client
        .must_publish(&control_out_topic(client_id), &online_message())
        .await;
    client
}

/// A cluster in which clients are silent after a short time.
async fn cluster_with_short_times() -> Cluster {
    Cluster::new()
        .await
        .set("presence.silent_after", "4s")
        .set("presence.last_seen_interval", "1s")
        .set("presence.ping_timeout", "3s")
        .set("presence.broker_restart_wait", "1h")
}

#[tokio::test]
async fn exactly_the_clients_that_died_with_the_broker_expire() {
    let (living, dead, wait, ping_timeout) = if is_full_size_run() {
        (3333, 1667, Duration::from_mins(1), Duration::from_secs(30))
    } else {
        (40, 25, Duration::from_secs(15), Duration::from_secs(5))
    };
    let cluster = Cluster::new()
        .await
        .set("presence.silent_after", "1h")
        .set("presence.last_seen_interval", "1s")
        .set(
            "presence.ping_timeout",
            format!("{}s", ping_timeout.as_secs()),
        )
        .set(
            "presence.broker_restart_wait",
            format!("{}s", wait.as_secs()),
        );
    let _ingest = cluster.start(&["ingest"]).await;
    let _record = cluster.start(&["record"]).await;
    let updaters = cluster.start(&["updaters"]).await;
    let mut database = cluster.connect_to_database().await;
    let _living_fleet = start_fleet(&cluster, "living", living);
    let mut dying_fleet = start_fleet(&cluster, "dying", dead);
    let all = i64::from(living + dead);
    wait_for_count(&mut database, CONNECTED, PASS_TIMEOUT, |count| count == all).await;

    cluster.mosquitto.kill().await;
    dying_fleet.kill().await.unwrap();
    cluster.mosquitto.start_process().await;
    let restarted_at = Instant::now();

    let dead = i64::from(dead);
    let timeout = PASS_TIMEOUT + wait + 4 * ping_timeout;
    wait_for_count(&mut database, EXPIRED, timeout, |count| count >= dead).await;
    let elapsed = restarted_at.elapsed();
    assert!(elapsed >= wait, "{elapsed:?}");
    let expired = ever_expired(&mut database).await;
    let unexpected: Vec<_> = expired
        .iter()
        .filter(|id| !id.starts_with("dying"))
        .collect();
    assert!(unexpected.is_empty(), "{unexpected:?}");
    assert_eq!(i64::try_from(expired.len()).unwrap(), dead);
    wait_for_count(&mut database, CONNECTED, PASS_TIMEOUT, |count| {
        count == i64::from(living)
    })
    .await;
    let pings = updaters
        .read_metric("cloud_connector_liveness_pings_total", "sent")
        .await;
    eprintln!(
        "liveness sweep: {living} living and {dead} dead clients; all dead clients and no other client \
         expired {:.1} s after the restart of the broker (wait {wait:?}, ping timeout {ping_timeout:?}); \
         {pings} pings",
        elapsed.as_secs_f64()
    );
}

#[tokio::test]
async fn living_silent_clients_stay_connected_and_an_expired_client_is_restored_by_a_heartbeat() {
    let cluster = cluster_with_short_times().await;
    let _ingest = cluster.start(&["ingest"]).await;
    let _record = cluster.start(&["record"]).await;
    let api = cluster.start(&["api"]).await;
    let mut database = cluster.connect_to_database().await;
    let _fleet = start_fleet(&cluster, "living", 5);
    let dead_id = unique_id("dead");
    let mut dead = connect_silent_client(&cluster, &dead_id).await;
    wait_for_count(&mut database, CONNECTED, PASS_TIMEOUT, |count| count == 6).await;
    let _updaters = cluster.start(&["updaters"]).await;
    wait_for_count(&mut database, EXPIRED, PASS_TIMEOUT, |count| count == 1).await;
    // The pongs move `last_seen`: each client was pinged, and is seen after the dead client expired.
    let seen_later = "SELECT count(*) FROM connections WHERE last_seen > (
                          SELECT disconnected_at FROM disconnected_clients WHERE reason = 'expired')";
    wait_for_count(&mut database, seen_later, PASS_TIMEOUT, |count| count == 5).await;
    assert_eq!(
        ever_expired(&mut database).await,
        BTreeSet::from([dead_id.clone()])
    );
    let path = format!("/v2/connections/{dead_id}");
    let response = api.request("GET", &path).send().await.unwrap();
    let details: Value = response.json().await.unwrap();
    assert_eq!(details["reason"], "expired", "{details}");
    let offline_events = "SELECT count(*) FROM events
                           WHERE type = 'connection.offline' AND data LIKE '%\"expired\"%'";
    wait_for_count(&mut database, offline_events, PASS_TIMEOUT, |count| {
        count == 1
    })
    .await;

    dead.publish_heartbeat(&data_out_topic(&dead_id)).await;
    wait_for_count(&mut database, CONNECTED, PASS_TIMEOUT, |count| count == 6).await;
}

#[tokio::test]
async fn guard_changes_nothing_while_no_client_receives_pings() {
    const CLIENTS: u32 = 22;
    let cluster = cluster_with_short_times().await;
    let _ingest = cluster.start(&["ingest"]).await;
    let record = cluster.start(&["record"]).await;
    let mut database = cluster.connect_to_database().await;
    let mut clients = Vec::new();
    for number in 0..CLIENTS {
        let client_id = format!("unreachable-{number}");
        clients.push(connect_silent_client(&cluster, &client_id).await);
    }
    let all = i64::from(CLIENTS);
    wait_for_count(&mut database, CONNECTED, PASS_TIMEOUT, |count| count == all).await;
    let updaters = cluster.start(&["updaters"]).await;
    let suppressed = "cloud_connector_liveness_suppressed_total";
    wait_for_metric(&updaters, suppressed, "guard", f64::from(CLIENTS)).await;
    assert!(ever_expired(&mut database).await.is_empty());
    let has_warned = |line: &String| line.contains("liveness sweep incomplete");
    assert!(updaters.log_lines.lock().iter().any(has_warned));
    updaters.send_signal("TERM");
    assert_eq!(updaters.wait_for_exit().await.code(), Some(0));

    let (code, output) = cluster.run_command(&["update-presence", "--dry-run"]).await;
    assert_eq!((code, output.lines().next()), (Some(0), Some("22 silent")));
    let (code, output) = cluster.run_command(&["update-presence"]).await;
    assert_eq!(code, Some(1), "{output}");
    let expected = "22 checked, 22 silent, 0 answered, 0 expired, 22 kept; stopped: ";
    assert!(
        output.contains(expected) && output.contains("--force"),
        "{output}"
    );
    let (code, output) = cluster.run_command(&["update-presence", "--force"]).await;
    assert_eq!(code, Some(0), "{output}");
    assert!(
        output.contains("22 checked, 22 silent, 0 answered, 22 expired, 0 kept"),
        "{output}"
    );
    wait_for_count(&mut database, CONNECTED, PASS_TIMEOUT, |count| count == 0).await;
    drop(record);
}

#[tokio::test]
async fn nothing_expires_while_record_is_stopped() {
    let cluster = cluster_with_short_times().await;
    let _ingest = cluster.start(&["ingest"]).await;
    let record = cluster.start(&["record"]).await;
    let mut database = cluster.connect_to_database().await;
    let mut clients = Vec::new();
    for number in 0..3 {
        clients.push(connect_silent_client(&cluster, &format!("silent-{number}")).await);
    }
    wait_for_count(&mut database, CONNECTED, PASS_TIMEOUT, |count| count == 3).await;
    let progress = "SELECT count(*) FROM recording_progress";
    wait_for_count(&mut database, progress, PASS_TIMEOUT, |count| count == 12).await;
    record.send_signal("TERM");
    assert_eq!(record.wait_for_exit().await.code(), Some(0));
    let updaters = cluster.start(&["updaters"]).await;
    let suppressed = "cloud_connector_liveness_suppressed_total";
    wait_for_metric(&updaters, suppressed, "recording_behind", 3.0).await;
    assert!(ever_expired(&mut database).await.is_empty());
    // A client sends a message that is recorded only after the pings.
    let heartbeat_topic = data_out_topic("silent-0");
    clients[0].publish_heartbeat(&heartbeat_topic).await;
    let _record = cluster.start(&["record"]).await;
    let expired = "SELECT count(*) FROM disconnected_clients WHERE reason = 'expired'
                      AND client_id IN ('silent-1', 'silent-2')";
    wait_for_count(&mut database, expired, PASS_TIMEOUT, |count| count == 2).await;
}

#[tokio::test]
async fn handshake_client_expires_after_its_retained_handshake_is_gone() {
    let cluster = cluster_with_short_times().await;
    let _ingest = cluster.start(&["ingest"]).await;
    let _record = cluster.start(&["record"]).await;
    let mut database = cluster.connect_to_database().await;
    let address = format!("127.0.0.1:{}", cluster.mosquitto.port);
    let mut clients = Vec::new();
    for client_id in ["gone", "retained"] {
        let connect = Connect::new(client_id).without_keep_alive();
        let mut client = RawClient::connect(&address, &connect).await;
        let handshake = json!({"type": "host-handshake", "message_id": client_id, "version": 1,
            "sent": jiff::Timestamp::now().to_string(),
            "payload": {"canonical_facts": {"fqdn": "handshake.example"}}});
        let topic = format!("redhat/insights/in/{client_id}");
        client
            .publish_retained(&topic, handshake.to_string().as_bytes())
            .await;
        clients.push(client);
    }
    wait_for_count(&mut database, CONNECTED, PASS_TIMEOUT, |count| count == 2).await;
    clients[0]
        .publish_retained("redhat/insights/in/gone", b"")
        .await;
    let updaters = cluster.start(&["updaters"]).await;
    wait_for_count(&mut database, EXPIRED, PASS_TIMEOUT, |count| count == 1).await;
    // A later pass finds the retained handshake again.
    let answers = "cloud_connector_liveness_answers_total";
    let answered = updaters.read_metric(answers, "").await;
    wait_for_metric(&updaters, answers, "", answered + 1.0).await;
    assert_eq!(
        ever_expired(&mut database).await,
        BTreeSet::from(["gone".to_owned()])
    );
    wait_for_count(&mut database, CONNECTED, PASS_TIMEOUT, |count| count == 1).await;
}
