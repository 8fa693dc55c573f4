//! Tests the reports of connected hosts to inventory. The connector writes the reports to a Kafka
//! topic in distributed mode, and to a file in embedded mode.

use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use test_support::each_deployment;
use test_support::mqtt::{Connect, RawClient, control_out_topic, online_message};
use test_support::{Connector, Deployment, eventually, unique_id};

each_deployment!(
    a_host_that_comes_online_is_reported_to_inventory,
    a_tenantless_client_is_not_reported_to_inventory with &[("tenant.default_org_id", "")],
    a_host_without_an_eligible_dispatcher_is_not_reported_to_inventory,
);

const MESSAGES_METRIC: &str = "cloud_connector_inventory_messages_total";

/// Returns an online message of a host that is eligible for inventory.
fn host_online_message() -> Value {
    let mut online = online_message();
    online["content"]["canonical_facts"] = json!({
        "insights_id": "cabb61b6e61d4d70b47501f5c009e93c", "fqdn": "a.example",
        "mac_addresses": ["00:00:00:00:00:00"], "machine_id": "",
    });
    online["content"]["dispatchers"] = json!({"rhc_worker_playbook": {}});
    online["content"]["tags"] = json!({"region": "us1"});
    online
}

async fn a_host_that_comes_online_is_reported_to_inventory(deployment: Deployment) {
    let client_id = uuid::Uuid::new_v4().to_string();
    let mut client =
        RawClient::connect(&deployment.mqtt_address(), &Connect::new(&client_id)).await;
    client
        .must_publish(&control_out_topic(&client_id), &host_online_message())
        .await;
    deployment.wait_until_connected(&client_id).await;
    let message = eventually("the inventory message", || async {
        let messages = deployment.inventory_messages().await;
        messages
            .into_iter()
            .find(|message| message["data"]["system_profile"]["rhc_client_id"] == *client_id)
    })
    .await;
    assert_eq!(message["operation"], "add_host");
    deployment
        .wait_until_reported_to_inventory(&client_id)
        .await;
    let data = &message["data"];
    assert_eq!(data["org_id"], "10000");
    assert_eq!(data["account"], "111000");
    assert_eq!(data["reporter"], "cloud-connector");
    assert_eq!(data["insights_id"], "cabb61b6-e61d-4d70-b475-01f5c009e93c");
    assert_eq!(data.get("mac_addresses"), None);
    assert_eq!(data["tags"], json!({"rhc_client": {"region": ["us1"]}}));
    let stale_at: jiff::Timestamp = data["stale_timestamp"].as_str().unwrap().parse().unwrap();
    let hours = stale_at.duration_since(jiff::Timestamp::now()).as_hours();
    assert!((25..=26).contains(&hours), "{stale_at}");
    // A later online message is reported, too. A duplicate online message is not reported.
    let count_before = deployment.inventory_messages().await.len();
    let mut later_online = host_online_message();
    later_online["message_id"] = json!("later");
    for _ in 0..3 {
        client
            .must_publish(&control_out_topic(&client_id), &later_online)
            .await;
    }
    let mut last_online = host_online_message();
    last_online["content"]["tags"] = json!({"region": "last"});
    client
        .must_publish(&control_out_topic(&client_id), &last_online)
        .await;
    let messages = eventually("the last inventory message", || async {
        let messages = deployment.inventory_messages().await;
        let is_last =
            |message: &Value| message["data"]["tags"]["rhc_client"]["region"][0] == "last";
        messages.iter().any(is_last).then_some(messages)
    })
    .await;
    let added_count = messages.len() - count_before;
    // The inventory refresh job, which also runs at startup, can report a host whose report the
    // recorder has just sent but not stored yet. If duplicates were reported, there would be four
    // messages.
    assert!(
        added_count <= 3,
        "{added_count} inventory messages for 2 new online messages"
    );
}

async fn a_tenantless_client_is_not_reported_to_inventory(deployment: Deployment) {
    let client_id = unique_id("tenantless");
    let mut client =
        RawClient::connect(&deployment.mqtt_address(), &Connect::new(&client_id)).await;
    client
        .must_publish(&control_out_topic(&client_id), &host_online_message())
        .await;
    wait_for_recorded_online_messages(&deployment, 1.0).await;
    assert!(deployment.inventory_messages().await.is_empty());
}

async fn a_host_without_an_eligible_dispatcher_is_not_reported_to_inventory(
    deployment: Deployment,
) {
    let client_id = unique_id("no-worker");
    let mut client =
        RawClient::connect(&deployment.mqtt_address(), &Connect::new(&client_id)).await;
    let mut online = host_online_message();
    online["content"]["dispatchers"] = json!({"echo": {}});
    client
        .must_publish(&control_out_topic(&client_id), &online)
        .await;
    deployment.wait_until_connected(&client_id).await;
    assert!(deployment.inventory_messages().await.is_empty());
}

/// The inventory file is a named pipe that no process reads. Opening the pipe for writing blocks
/// until the test opens the pipe for reading, so the reports of hosts do not complete.
#[tokio::test]
async fn a_blocked_inventory_file_does_not_block_the_recorder_and_the_hosts_stay_pending() {
    // The recorder would wait much longer than the test if it waited for the delivery.
    let builder = Connector::builder().set("inventory.delivery_timeout", "1h");
    let data_dir = builder.temp_dir().join("data");
    std::fs::create_dir(&data_dir).unwrap();
    std::fs::set_permissions(&data_dir, std::fs::Permissions::from_mode(0o700)).unwrap();
    let pipe = data_dir.join("inventory.ndjson");
    let status = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(status.unwrap().success());
    let deployment = Deployment::Embedded(Box::new(builder.start().await));
    let client_ids = ["blocked-1", "blocked-2", "blocked-3"].map(unique_id);
    for client_id in &client_ids {
        let connect = Connect::new(client_id);
        let mut client = RawClient::connect(&deployment.mqtt_address(), &connect).await;
        // The embedded broker sends the PUBACK after the recorder has committed the message.
        client
            .must_publish(&control_out_topic(client_id), &host_online_message())
            .await;
        let row = deployment.row(client_id).await.expect("a recorded row");
        assert_eq!(row.stale_timestamp, 0, "the report is pending");
    }
    let delivered = deployment
        .read_metric(MESSAGES_METRIC, r#""delivered""#)
        .await;
    assert!(delivered < 0.5, "{delivered}");
}

#[tokio::test]
async fn hosts_are_reported_by_the_refresh_job_after_inventory_was_unavailable() {
    let settings = [("inventory.delivery_timeout", "100ms")];
    let deployment = Deployment::embedded(&settings).await;
    let Deployment::Embedded(connector) = &deployment else {
        unreachable!("the test starts an embedded deployment");
    };
    // The inventory file cannot be opened while a directory has its name.
    let file = connector.data_dir().join("inventory.ndjson");
    std::fs::create_dir(&file).unwrap();
    let client_id = unique_id("pending");
    let mut client =
        RawClient::connect(&deployment.mqtt_address(), &Connect::new(&client_id)).await;
    client
        .must_publish(&control_out_topic(&client_id), &host_online_message())
        .await;
    wait_for_failed_delivery(&deployment).await;
    let row = deployment.row(&client_id).await.unwrap();
    assert_eq!(row.stale_timestamp, 0, "the report is pending");
    std::fs::remove_dir(&file).unwrap();
    // The connector runs the same job when it starts, so it can report the host first.
    let (code, output) = deployment.run_command(&["update-inventory"]).await;
    assert_eq!(code, Some(0), "{output}");
    deployment
        .wait_until_reported_to_inventory(&client_id)
        .await;
    assert!(!deployment.inventory_messages().await.is_empty());
}

#[tokio::test]
async fn in_distributed_mode_a_missing_inventory_topic_does_not_block_the_recorder() {
    /// Time after which the Kafka producer gives up. A recorder that waits for the producer cannot
    /// commit a message earlier, independent of the speed of the machine.
    const PRODUCER_TIMEOUT: Duration = Duration::from_secs(10);
    let deployment = Deployment::distributed(&[
        ("inventory.topic", "nowhere"),
        ("inventory.delivery_timeout", "100ms"),
    ])
    .await;
    let client_id = unique_id("unavailable");
    let mut client =
        RawClient::connect(&deployment.mqtt_address(), &Connect::new(&client_id)).await;
    let published_at = Instant::now();
    client
        .must_publish(&control_out_topic(&client_id), &host_online_message())
        .await;
    deployment.wait_until_connected(&client_id).await;
    let elapsed = published_at.elapsed();
    assert!(elapsed < PRODUCER_TIMEOUT, "recorded after {elapsed:?}");
    wait_for_failed_delivery(&deployment).await;
    let row = deployment.row(&client_id).await.unwrap();
    assert_eq!(row.stale_timestamp, 0, "the report is pending");
}

async fn wait_for_failed_delivery(deployment: &Deployment) {
    eventually("a failed delivery", || async {
        let not_delivered = deployment.read_metric(MESSAGES_METRIC, "not_delivered");
        (not_delivered.await > 0.5).then_some(())
    })
    .await;
}

async fn wait_for_recorded_online_messages(deployment: &Deployment, count: f64) {
    eventually("online messages to be recorded", || async {
        let metric_name = "cloud_connector_messages_applied_total";
        (deployment.read_metric(metric_name, "online").await > count - 0.5).then_some(())
    })
    .await;
}
