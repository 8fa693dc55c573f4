//! Faults of the disk below the SQLite database.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use test_support::connector::DEFAULT_ORG_ID;
use test_support::mqtt::{Connect, control_out_topic, online_message};
use test_support::{Connector, RawClient, eventually, unique_id};

/// Maximum time between a fault and the exit of the process. The connector checks its files every
/// second, and then shuts down.
const MAX_EXIT_TIME: Duration = Duration::from_secs(10);

fn database_file(connector: &Connector, suffix: &str) -> PathBuf {
    connector
        .data_dir()
        .join(format!("cloud-connector.db{suffix}"))
}

/// Connects a client and waits until its online message is acknowledged.
async fn connect_online(connector: &Connector, client_id: &str) -> RawClient {
    let connect = Connect::new(client_id).without_keep_alive();
    let mut client = RawClient::connect(&connector.mqtt_address, &connect).await;
    client
        .must_publish(&control_out_topic(client_id), &online_message())
        .await;
    client
}

/// Starts a connector, records a client, and applies `fault`. Checks that the next message is not
/// acknowledged, and that the process exits with an error that contains all of `expected_texts`.
async fn assert_fault_stops_acknowledgements(
    fault: impl AsyncFnOnce(&Connector),
    expected_texts: &[&str],
) -> Connector {
    let mut connector = Connector::start().await;
    let client_id = unique_id("before-fault");
    let mut client = connect_online(&connector, &client_id).await;
    fault(&connector).await;
    let faulted_at = Instant::now();
    let message = online_message().to_string();
    let puback = client
        .publish(&control_out_topic(&client_id), message.as_bytes())
        .await;
    assert_eq!(puback, None, "acknowledged after the fault");
    assert_exit_with_error(&mut connector, faulted_at, expected_texts).await;
    connector
}

async fn assert_exit_with_error(connector: &mut Connector, since: Instant, texts: &[&str]) {
    let status = connector.wait_for_exit().await;
    let elapsed = since.elapsed();
    println!("exited {elapsed:?} after the fault");
    assert_eq!(status.code(), Some(1));
    assert!(elapsed < MAX_EXIT_TIME, "exited after {elapsed:?}");
    let description = format!("one log line with {texts:?}");
    eventually(&description, || async {
        let lines = connector.log_lines.lock();
        let is_error = |line: &&String| line.contains("ERROR") || line.contains("\"error\"");
        let mut errors = lines.iter().filter(is_error);
        errors
            .any(|line| texts.iter().all(|text| line.contains(text)))
            .then_some(())
    })
    .await;
}

#[tokio::test]
async fn nothing_is_acknowledged_after_the_database_file_is_deleted() {
    assert_fault_stops_acknowledgements(
        async |connector| std::fs::remove_file(database_file(connector, "")).unwrap(),
        &["cloud-connector.db", "deleted", "restart"],
    )
    .await;
}

#[tokio::test]
async fn nothing_is_acknowledged_after_all_database_files_are_deleted() {
    let delete_all = async |connector: &Connector| {
        for suffix in ["", "-wal", "-shm"] {
            std::fs::remove_file(database_file(connector, suffix)).unwrap();
        }
    };
    let texts = ["cloud-connector.db", "deleted", "restart"];
    let mut connector = assert_fault_stops_acknowledgements(delete_all, &texts).await;
    // The next process starts with an empty database.
    connector.start_process().await;
    assert_eq!(connector.list_client_ids(DEFAULT_ORG_ID).await.len(), 0);
}

#[tokio::test]
async fn a_deleted_write_ahead_log_loses_no_acknowledged_message() {
    let delete_wal = async |connector: &Connector| {
        std::fs::remove_file(database_file(connector, "-wal")).unwrap();
    };
    let texts = ["cloud-connector.db-wal", "deleted", "restart"];
    let mut connector = assert_fault_stops_acknowledgements(delete_wal, &texts).await;
    // The acknowledged message was only in the write-ahead log. The shutdown copies the log into
    // the database file.
    connector.start_process().await;
    assert_eq!(connector.list_client_ids(DEFAULT_ORG_ID).await.len(), 1);
}

#[tokio::test]
async fn nothing_is_acknowledged_after_the_data_folder_is_deleted() {
    let delete_folder = async |connector: &Connector| {
        // The connector can create or rename a file in the folder at the same time.
        while connector.data_dir().exists() {
            let _ = std::fs::remove_dir_all(connector.data_dir());
        }
    };
    let texts = ["cloud-connector.db", "deleted", "restart"];
    assert_fault_stops_acknowledgements(delete_folder, &texts).await;
}

#[tokio::test]
async fn nothing_is_acknowledged_after_the_data_folder_is_replaced() {
    let replace_folder = async |connector: &Connector| {
        let data_dir = connector.data_dir();
        std::fs::rename(&data_dir, data_dir.with_extension("old")).unwrap();
        std::fs::create_dir(&data_dir).unwrap();
        let old_file = data_dir.with_extension("old").join("cloud-connector.db");
        std::fs::copy(old_file, data_dir.join("cloud-connector.db")).unwrap();
    };
    // The process may check its files before the new file exists, and then reports a deleted file.
    let texts = ["cloud-connector.db", "while the process used it", "restart"];
    assert_fault_stops_acknowledgements(replace_folder, &texts).await;
}

#[tokio::test]
async fn a_backup_that_replaces_the_open_database_file_is_used_after_the_restart() {
    let mut connector = Connector::start().await;
    let old_client_id = unique_id("in-backup");
    let client = connect_online(&connector, &old_client_id).await;
    connector.send_signal("TERM");
    assert_eq!(connector.wait_for_exit().await.code(), Some(0));
    drop(client);
    let backup = connector.data_dir().join("backup.db");
    std::fs::copy(database_file(&connector, ""), &backup).unwrap();

    connector.start_process().await;
    let new_client_id = unique_id("after-backup");
    let mut client = connect_online(&connector, &new_client_id).await;
    std::fs::rename(&backup, database_file(&connector, "")).unwrap();
    let replaced_at = Instant::now();
    // A connection that reads the backup must not apply the write-ahead log of the old file.
    let requests = (0..20).map(|_| connector.request("GET", "/v2/connections").send());
    futures::future::join_all(requests).await;
    let message = online_message().to_string();
    let puback = client
        .publish(&control_out_topic(&new_client_id), message.as_bytes())
        .await;
    assert_eq!(puback, None, "acknowledged after the database was replaced");
    let texts = ["cloud-connector.db", "replaced", "restart"];
    assert_exit_with_error(&mut connector, replaced_at, &texts).await;

    // The write-ahead log of the old file must not be applied to the backup.
    connector.start_process().await;
    let client_ids = connector.list_client_ids(DEFAULT_ORG_ID).await;
    assert_eq!(client_ids, [old_client_id]);
}

#[tokio::test]
async fn an_idle_process_exits_after_its_database_file_is_deleted() {
    let mut connector = Connector::start().await;
    std::fs::remove_file(database_file(&connector, "")).unwrap();
    let texts = ["cloud-connector.db", "deleted", "restart"];
    assert_exit_with_error(&mut connector, Instant::now(), &texts).await;
}

#[tokio::test]
async fn a_process_exits_after_the_lock_file_of_its_data_folder_is_deleted() {
    let mut connector = Connector::start().await;
    std::fs::remove_file(connector.data_dir().join("lock")).unwrap();
    let texts = ["lock", "deleted", "restart"];
    assert_exit_with_error(&mut connector, Instant::now(), &texts).await;
}

/// Environment variable of a test that runs in its own mount namespace.
const IN_NAMESPACE: &str = "CC_TEST_IN_MOUNT_NAMESPACE";

/// Runs the test `test_name` in a process with its own mount namespace, in which any user can mount
/// a small file system. Returns false in that process: the caller then runs the test. The mounts
/// end with the process.
#[expect(
    clippy::disallowed_methods,
    reason = "the variable belongs to the test, not to the connector"
)]
fn ran_in_mount_namespace(test_name: &str) -> bool {
    if std::env::var_os(IN_NAMESPACE).is_some() {
        return false;
    }
    let status = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture"])
        .arg(format!(
            "{}::{test_name}",
            module_path!().split_once("::").unwrap().1
        ))
        .env(IN_NAMESPACE, "1")
        .status()
        .expect("the command unshare of util-linux");
    assert!(
        status.success(),
        "{test_name} failed in its mount namespace, or this system allows no user namespaces"
    );
    true
}

/// A full disk: the data folder on a small file system, and a file that occupies the free space.
struct FullDisk {
    filler: PathBuf,
}

/// Mounts a file system of 8 MiB on the data folder of a connector, and starts the connector.
async fn start_on_small_disk() -> Connector {
    let builder = Connector::builder()
        // A client waits for the acknowledgement until the disk has room again.
        .set("broker.ack_timeout", "60s");
    let data_dir = builder.temp_dir().join("data");
    std::fs::create_dir(&data_dir).unwrap();
    let mount = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=8m", "tmpfs"])
        .arg(&data_dir)
        .status()
        .unwrap();
    assert!(mount.success(), "cannot mount a tmpfs");
    builder.start().await
}

impl FullDisk {
    fn fill(folder: &Path) -> Self {
        use std::io::Write as _;
        let filler = folder.join("filler");
        let mut file = std::fs::File::create(&filler).unwrap();
        let page = [0; 4096];
        let error = loop {
            if let Err(error) = file.write_all(&page) {
                break error;
            }
        };
        assert_eq!(error.kind(), std::io::ErrorKind::StorageFull, "{error}");
        Self { filler }
    }

    fn free(self) {
        std::fs::remove_file(self.filler).unwrap();
    }
}

/// Returns an online message that does not fit into the allocated part of any file.
fn large_online_message() -> Value {
    let mut message = online_message();
    message["content"]["canonical_facts"] = json!({"fqdn": "x".repeat(100_000)});
    message
}

/// Waits until `/readiness` reports the recorder as failed. Returns the reported error.
async fn wait_until_recorder_fails(connector: &Connector) -> String {
    eventually("the recorder to be reported as failed", || async {
        let (status, body) = connector.readiness().await;
        let error = body["components"]["recorder"].as_str().unwrap_or_default();
        (status == 503 && error != "ok").then(|| error.to_owned())
    })
    .await
}

fn count_retries(connector: &Connector) -> usize {
    let lines = connector.log_lines.lock();
    let is_retry = |line: &&String| line.contains("retrying");
    lines.iter().filter(is_retry).count()
}

#[tokio::test]
async fn recording_continues_without_a_restart_after_a_full_disk_has_room_again() {
    let test = "recording_continues_without_a_restart_after_a_full_disk_has_room_again";
    if ran_in_mount_namespace(test) {
        return;
    }
    let connector = start_on_small_disk().await;
    let client_id = unique_id("full-disk");
    let mut client = connect_online(&connector, &client_id).await;
    for round in 0..3 {
        let disk = FullDisk::fill(&connector.data_dir());
        let message = large_online_message();
        let payload = message.to_string();
        let packet_id = client
            .send_publish(&control_out_topic(&client_id), payload.as_bytes(), false)
            .await;
        // Later attempts must report the same cause as the first one.
        wait_until_recorder_fails(&connector).await;
        let retries_before = count_retries(&connector);
        eventually("another attempt", || async {
            (count_retries(&connector) > retries_before).then_some(())
        })
        .await;
        let error = wait_until_recorder_fails(&connector).await;
        assert!(error.contains("full"), "round {round}: {error}");
        disk.free();
        let freed_at = Instant::now();
        let puback = client.read_packet().await.expect("a PUBACK");
        assert_eq!(puback.body[..2], packet_id.to_be_bytes());
        eventually("the connector to be ready again", || async {
            (connector.readiness().await.0 == 200).then_some(())
        })
        .await;
        println!(
            "round {round}: ready {:?} after the disk had room",
            freed_at.elapsed()
        );
    }
}

#[tokio::test]
async fn a_shutdown_while_the_disk_is_full_is_prompt_and_logs_the_cause() {
    let test = "a_shutdown_while_the_disk_is_full_is_prompt_and_logs_the_cause";
    if ran_in_mount_namespace(test) {
        return;
    }
    let mut connector = start_on_small_disk().await;
    let client_id = unique_id("full-disk");
    let mut client = connect_online(&connector, &client_id).await;
    let _disk = FullDisk::fill(&connector.data_dir());
    let payload = large_online_message().to_string();
    client
        .send_publish(&control_out_topic(&client_id), payload.as_bytes(), false)
        .await;
    wait_until_recorder_fails(&connector).await;
    let stopped_at = Instant::now();
    connector.send_signal("TERM");
    let status = connector.wait_for_exit().await;
    let elapsed = stopped_at.elapsed();
    println!("exited {elapsed:?} after SIGTERM with {status}");
    assert!(elapsed < Duration::from_secs(6), "exited after {elapsed:?}");
    assert_eq!(
        client.read_packet().await,
        None,
        "the message is not stored"
    );
    assert_eq!(status.code(), Some(0));
    eventually(
        "a log line with the cause and the number of messages",
        || async {
            let lines = connector.log_lines.lock();
            let is_cause = |line: &String| line.contains("not written") && line.contains("full");
            lines.iter().any(is_cause).then_some(())
        },
    )
    .await;
}
