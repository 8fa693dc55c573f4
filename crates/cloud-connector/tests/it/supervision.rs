//! A connector whose essential task fails is not ready, shuts down in order, and reports a failure.
//! Each test runs connectors in this process, and aborts one essential task of each connector.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use futures::future::join_all;
use serde_json::Value;
use tokio::net::TcpStream;

use cloud_connector::config::{Config, Overrides, load_with_environment};
use cloud_connector::runtime::{self, App, AppInfo, DataDir, Roles, RunOutcome};
use domain::SystemClock;
use service::{FailureCause, TaskName};
use test_support::{CONDITION_TIMEOUT, Certs, eventually};

/// Starts a connector with all roles.
async fn start(config: Config) -> App {
    let clock = Arc::new(SystemClock);
    runtime::start(config, Roles::new(&[]), clock)
        .await
        .unwrap()
}

/// Runs a connector until it shuts down. Panics if the shutdown takes too long.
async fn run_until(app: App, shutdown_signal: impl Future<Output = ()>) -> RunOutcome {
    let run = runtime::run_until(app, shutdown_signal);
    tokio::time::timeout(CONDITION_TIMEOUT, run)
        .await
        .expect("timed out waiting for the connector to shut down")
}

/// Starts a connector only to list its essential tasks.
async fn list_essential_tasks(config: Config) -> BTreeSet<TaskName> {
    let app = start(config).await;
    let tasks = app.supervisor().running_tasks();
    let outcome = run_until(app, std::future::ready(())).await;
    assert!(outcome.is_success(), "{outcome:?}");
    assert_eq!(outcome.exit_code(), ExitCode::SUCCESS);
    let names: BTreeSet<TaskName> = tasks.iter().cloned().collect();
    assert_eq!(names.len(), tasks.len(), "duplicate names: {tasks:?}");
    names
}

/// Panics if an expected task is not in the list. Such a task is no longer supervised.
fn assert_contains_all(tasks: &BTreeSet<TaskName>, expected_tasks: &[&'static str]) {
    for expected in expected_tasks {
        assert!(tasks.contains(*expected), "{expected} is not in {tasks:?}");
    }
}

/// Aborts one task of a running connector. Then checks the readiness, the outcome of the run, and
/// that the connector has closed its listeners.
///
/// `run_until` would close the HTTP listeners at once. Therefore this function requests the
/// readiness before it calls `run_until`.
async fn assert_abort_shuts_down(config: Config, http_client: &reqwest::Client, task: &TaskName) {
    let app = start(config).await;
    let info = app.info.clone();
    let url = readiness_url(&info, task);
    eventually(&format!("readiness before {task} is aborted"), || async {
        let (status, _) = request_readiness(http_client, &url).await;
        (status == 200).then_some(())
    })
    .await;
    assert!(app.supervisor().abort(task), "{task} is not running");
    let body = eventually(&format!("503 after {task} was aborted"), || async {
        let (status, body) = request_readiness(http_client, &url).await;
        (status == 503).then_some(body)
    })
    .await;
    let expected_text = format!("task {task} was aborted");
    assert_eq!(body["components"]["process"], expected_text, "{body}");

    let outcome = run_until(app, std::future::pending()).await;
    let failure = outcome.task_failure.as_ref().expect("a task failure");
    assert_eq!(failure.task, *task);
    assert_eq!(failure.cause, FailureCause::Aborted);
    assert!(outcome.is_clean_shutdown, "{task}: {outcome:?}");
    assert_eq!(outcome.exit_code(), ExitCode::FAILURE);
    assert_listeners_are_closed(&info).await;
}

/// Returns the URL of the readiness probe. If `task` is one of the two HTTP servers, the URL is that
/// of the other server.
fn readiness_url(info: &AppInfo, task: &TaskName) -> String {
    let scheme = if info.uses_https { "https" } else { "http" };
    match info.metrics_address {
        Some(address) if task != "metrics_server" => format!("http://{address}/readiness"),
        // The certificate is issued for this host name.
        _ => format!(
            "{scheme}://localhost:{}/readiness",
            info.http_address.port()
        ),
    }
}

async fn request_readiness(http_client: &reqwest::Client, url: &str) -> (u16, Value) {
    let response = http_client.get(url).send().await.unwrap();
    (response.status().as_u16(), response.json().await.unwrap())
}

async fn assert_listeners_are_closed(info: &AppInfo) {
    let addresses = [
        Some(info.http_address),
        info.metrics_address,
        info.mqtt_address,
        info.mqtts_address,
    ];
    for address in addresses.into_iter().flatten() {
        assert!(TcpStream::connect(address).await.is_err(), "{address}");
    }
}

/// Loads a configuration. The listeners use free ports.
fn load_config(
    env_vars: impl IntoIterator<Item = (String, String)>,
    settings: Vec<(&'static str, String)>,
) -> Config {
    let listeners = [
        ("http.listen", "127.0.0.1:0".to_owned()),
        ("http.metrics_listen", "127.0.0.1:0".to_owned()),
        // The registrations are never sent, because no catalog proxy connects.
        ("sources.url", "http://127.0.0.1:1".to_owned()),
    ];
    let overrides = Overrides {
        config_file: None,
        flags: listeners
            .into_iter()
            .chain(settings)
            .map(|(setting, value)| ("--test", setting, value))
            .collect(),
    };
    load_with_environment(&overrides, env_vars).unwrap().config
}

/// Returns a configuration of embedded mode in which all optional listeners are configured.
fn embedded_config(data_dir: &Path, certs: &Certs) -> Config {
    let certificate_file = |name: &str| certs.file_path(name).display().to_string();
    let settings = vec![
        ("data.dir", data_dir.display().to_string()),
        ("broker.listen", "127.0.0.1:0".to_owned()),
        ("broker.websocket.listen", "127.0.0.1:0".to_owned()),
        ("broker.tls.listen", "127.0.0.1:0".to_owned()),
        ("broker.tls.websocket_listen", "127.0.0.1:0".to_owned()),
        ("broker.tls.certificate", certificate_file("server.pem")),
        ("broker.tls.key", certificate_file("server.key")),
        ("broker.tls.client_ca", certificate_file("ca.pem")),
        ("http.tls.certificate", certificate_file("server.pem")),
        ("http.tls.key", certificate_file("server.key")),
    ];
    load_config([], settings)
}

/// Opens the data folder and checks the database. Both fail if the connector did not release them.
async fn assert_database_can_be_reopened(data_dir: &Path) {
    let data_dir = DataDir::open(data_dir).unwrap();
    let database = data_dir.database_path();
    store_sqlite::check_integrity(&database).await.unwrap();
    // The connector deletes the write-ahead log when it closes the database.
    let write_ahead_log = database.with_extension("db-wal");
    assert!(!write_ahead_log.exists());
}

fn client_that_trusts(certs: &Certs) -> reqwest::Client {
    // Installs the rustls provider.
    let _ = test_support::http_client();
    let ca = std::fs::read(certs.file_path("ca.pem")).unwrap();
    let ca = reqwest::Certificate::from_pem(&ca).unwrap();
    reqwest::Client::builder()
        .tls_certs_only([ca])
        .build()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn failure_of_each_essential_task_shuts_down_an_embedded_connector() {
    let folder = tempfile::tempdir().unwrap();
    let certs = Certs::init(folder.path()).await;
    let http_client = client_that_trusts(&certs);
    let config = embedded_config(&folder.path().join("list"), &certs);
    let tasks = list_essential_tasks(config).await;
    let expected_tasks = [
        "broker_housekeeping",
        "broker_listener",
        "broker_tls_listener",
        "broker_tls_reload",
        "broker_tls_websocket_listener",
        "broker_websocket_listener",
        "dead_letter_replay",
        "handshake_errors",
        "http_server",
        "http_tls_reload",
        "metrics_server",
        "metrics_upkeep",
        "periodic_jobs",
        "recorder_writer_1",
        "source_registrations",
        "startup_sweep",
    ];
    assert_contains_all(&tasks, &expected_tasks);
    join_all(tasks.iter().map(|task| async {
        let data_dir = folder.path().join(task.as_ref());
        let config = embedded_config(&data_dir, &certs);
        assert_abort_shuts_down(config, &http_client, task).await;
        assert_database_can_be_reopened(&data_dir).await;
    }))
    .await;
}

mod distributed {
    use futures::StreamExt as _;

    use super::{Config, TaskName, assert_abort_shuts_down, assert_contains_all};
    use super::{list_essential_tasks, load_config};
    use test_support::cluster::Cluster;
    use test_support::unique_id;

    /// Maximum number of connectors that run at the same time. It limits the number of connections
    /// to PostgreSQL.
    const MAX_CONNECTORS: usize = 8;

    /// Returns a configuration of a connector with all roles. The connector receives all messages,
    /// because no other connector uses the same client id and consumer groups.
    fn distributed_config(cluster: &Cluster) -> Config {
        let settings = vec![
            ("mqtt.client_id", unique_id("ingest")),
            ("kafka.group", unique_id("group")),
            ("kafka.answers_group", unique_id("answers-group")),
            ("kafka.slow_group", unique_id("slow-group")),
            ("postgres.max_connections", "5".to_owned()),
        ];
        load_config(cluster.env_vars().iter().cloned(), settings)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn failure_of_each_essential_task_shuts_down_a_distributed_connector() {
        let cluster = Cluster::new().await;
        let http_client = test_support::http_client();
        let tasks = list_essential_tasks(distributed_config(&cluster)).await;
        let expected_tasks = [
            "event_forwarder",
            "event_sequencer",
            "handshake_errors",
            "http_server",
            "kafka_reader_answers",
            "kafka_reader_ingress",
            "kafka_reader_slow",
            "metrics_server",
            "metrics_upkeep",
            "mqtt_ingest",
            "mqtt_publisher",
            "mqtt_responses",
            "periodic_jobs",
            "recorder_writer_1",
            "recorder_writer_2",
            "recorder_writer_slow",
            "source_registrations",
        ];
        assert_contains_all(&tasks, &expected_tasks);
        futures::stream::iter(&tasks)
            .for_each_concurrent(MAX_CONNECTORS, |task| {
                assert_abort_shuts_down(distributed_config(&cluster), &http_client, task)
            })
            .await;
    }

    #[tokio::test]
    async fn dead_letter_replay_without_kafka_is_supervised() {
        let cluster = Cluster::new().await.set("kafka.brokers", "");
        let http_client = test_support::http_client();
        let task = TaskName::from("dead_letter_replay");
        assert_abort_shuts_down(distributed_config(&cluster), &http_client, &task).await;
    }
}
