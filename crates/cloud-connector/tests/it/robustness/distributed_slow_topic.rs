//! The order of a client's messages across the switch to the slow topic and back, also if `record` lags
//! and if `ingest` is restarted.

use serde_json::Value;
use sqlx::{Connection as _, PgConnection};

use test_support::cluster::{Cluster, ConnectorProcess};
use test_support::mqtt::{
    Connect, RawClient, control_out_topic, data_out_topic, offline_message, online_message,
};
use test_support::services::read_topic;
use test_support::{eventually, unique_id};

/// A message with more bytes is over the budget of its client.
const BYTE_BURST: usize = 4000;

/// Returns a cluster in which only large messages are over the budget.
async fn cluster_with_byte_budget() -> Cluster {
    Cluster::new()
        .await
        .set("client_budget.byte_burst", BYTE_BURST)
        .set("client_budget.bytes_per_second", 100_000)
}

/// Returns an online message. The name identifies the message.
fn online(name: &str) -> Value {
    let mut message = online_message();
    message["content"]["canonical_facts"]["fqdn"] = name.into();
    message
}

/// Returns a message that is over the budget.
fn over_budget(mut message: Value) -> Value {
    message["content"]["tags"]["padding"] = "x".repeat(BYTE_BURST).into();
    message
}

struct TestClient {
    id: String,
    client: RawClient,
}

impl TestClient {
    async fn connect(cluster: &Cluster, prefix: &str) -> Self {
        let id = unique_id(prefix);
        let address = format!("127.0.0.1:{}", cluster.mosquitto.port);
        let connect = Connect::new(&id).without_keep_alive();
        Self {
            client: RawClient::connect(&address, &connect).await,
            id,
        }
    }

    async fn publish(&mut self, message: &Value) {
        let topic = control_out_topic(&self.id);
        self.client.must_publish(&topic, message).await;
    }
}

/// Waits until the ingress topic and the slow topic have these numbers of messages.
async fn wait_for_messages(cluster: &Cluster, ingress: usize, slow: usize) {
    let description =
        format!("{ingress} messages in the ingress topic and {slow} in the slow topic");
    eventually(&description, || async {
        let mut counts = Vec::new();
        for topic in ["kafka.ingress_topic", "kafka.slow_topic"] {
            let brokers = cluster.setting("kafka.brokers").to_owned();
            let topic = cluster.setting(topic).to_owned();
            let reading = tokio::task::spawn_blocking(move || read_topic(&brokers, &topic));
            counts.push(reading.await.unwrap().len());
        }
        assert!(
            counts[0] <= ingress && counts[1] <= slow,
            "the topics have {counts:?} messages; expected: {description}"
        );
        (counts == [ingress, slow]).then_some(())
    })
    .await;
}

async fn wait_for_slow_clients(ingest: &ConnectorProcess, expected: f64) {
    eventually("the expected number of slow clients", || async {
        let slow_clients = ingest
            .read_metric("cloud_connector_ingest_slow_clients", "")
            .await;
        ((slow_clients - expected).abs() < 0.5).then_some(())
    })
    .await;
}

/// Returns the name in the latest online message of a connected client.
async fn recorded_name(database: &mut PgConnection, client_id: &str) -> Option<String> {
    sqlx::query_scalar("SELECT canonical_facts->>'fqdn' FROM connections WHERE client_id = $1")
        .bind(client_id)
        .fetch_optional(database)
        .await
        .unwrap()
}

async fn wait_for_name(cluster: &Cluster, client_id: &str, expected: &str) {
    let database = tokio::sync::Mutex::new(cluster.connect_to_database().await);
    eventually(&format!("{client_id} with the name {expected}"), || async {
        let name = recorded_name(&mut *database.lock().await, client_id).await;
        (name.as_deref() == Some(expected)).then_some(())
    })
    .await;
}

/// The reader of the ingress topic cannot acquire its partitions. Meanwhile, the slow topic must not be
/// recorded.
#[tokio::test]
async fn messages_in_the_slow_topic_are_recorded_after_earlier_messages_in_the_ingress_topic() {
    let cluster = cluster_with_byte_budget().await;
    let _ingest = cluster.start(&["ingest"]).await;
    let mut ends_offline = TestClient::connect(&cluster, "offline").await;
    let mut ends_online = TestClient::connect(&cluster, "online").await;
    ends_offline.publish(&online("first")).await;
    ends_offline.publish(&over_budget(online("second"))).await;
    ends_offline.publish(&offline_message()).await;
    ends_online.publish(&online("first")).await;
    ends_online.publish(&offline_message()).await;
    // In the wrong order, the offline message would be the last message of this client.
    ends_online.publish(&over_budget(online("last"))).await;
    wait_for_messages(&cluster, 3, 3).await;

    let mut database = cluster.connect_to_database().await;
    let mut transaction = database.begin().await.unwrap();
    sqlx::query(
        "INSERT INTO partition_epoch (queue, partition, epoch, owner)
         SELECT 'ingress', partition, 1, 'test' FROM generate_series(0, 3) AS partition",
    )
    .execute(&mut *transaction)
    .await
    .unwrap();
    let record = cluster.start_without_waiting(&["record"]).await;
    eventually("messages that wait for the ingress topic", || async {
        let waiting = record
            .read_metric("cloud_connector_record_slow_messages_waiting", "")
            .await;
        (waiting > 0.5).then_some(())
    })
    .await;
    transaction.rollback().await.unwrap();

    wait_for_name(&cluster, &ends_online.id, "last").await;
    let api = cluster.start(&["api"]).await;
    api.wait_until_disconnected(&ends_offline.id).await;
    // The consumer group has committed all messages, so no message can follow.
    wait_until_committed(&cluster).await;
    let listed_ids = api.list_client_ids().await.unwrap();
    assert_eq!(listed_ids, [ends_online.id.clone()]);
}

/// Waits until no message of the slow topic is uncommitted.
async fn wait_until_committed(cluster: &Cluster) {
    let config = load_config(cluster);
    let (topic, group) = (&config.kafka.slow_topic, &config.kafka.slow_group);
    let progress = kafka::GroupProgress::new(&config.kafka, topic, group).unwrap();
    eventually("all messages of the slow topic to be committed", || async {
        let progress = progress.read().await.ok()?;
        let mut partitions = progress.values();
        partitions
            .all(|partition| partition.next_offset == partition.end_offset)
            .then_some(())
    })
    .await;
}

fn load_config(cluster: &Cluster) -> cloud_connector::config::Config {
    let overrides = cloud_connector::config::Overrides {
        config_file: None,
        flags: Vec::new(),
    };
    let env_vars = cluster.env_vars().iter().cloned();
    let loaded = cloud_connector::config::load_with_environment(&overrides, env_vars);
    loaded.unwrap().config
}

#[tokio::test]
async fn client_returns_from_the_slow_topic_when_its_messages_are_recorded() {
    let cluster = cluster_with_byte_budget().await;
    let ingest = cluster.start(&["ingest"]).await;
    let mut client = TestClient::connect(&cluster, "returning").await;
    let mut other_client = TestClient::connect(&cluster, "other").await;
    client.publish(&over_budget(online("slow 1"))).await;
    wait_for_messages(&cluster, 0, 1).await;
    // The client is within its budget again, but `record` has not recorded its message.
    client.publish(&offline_message()).await;
    client.publish(&online("slow 2")).await;
    other_client.publish(&online("other")).await;
    wait_for_messages(&cluster, 1, 3).await;
    wait_for_slow_clients(&ingest, 1.0).await;

    let _record = cluster.start(&["record"]).await;
    wait_for_name(&cluster, &client.id, "slow 2").await;
    wait_for_slow_clients(&ingest, 0.0).await;
    client.publish(&online("normal")).await;
    wait_for_messages(&cluster, 2, 3).await;
    wait_for_name(&cluster, &client.id, "normal").await;

    // The client can become slow again.
    client.publish(&over_budget(online("slow 3"))).await;
    wait_for_messages(&cluster, 2, 4).await;
    wait_for_name(&cluster, &client.id, "slow 3").await;
}

#[tokio::test]
async fn restarted_ingest_continues_with_the_clients_of_the_slow_topic() {
    let cluster = cluster_with_byte_budget().await;
    let ingest = cluster.start(&["ingest"]).await;
    let mut client = TestClient::connect(&cluster, "slow").await;
    let mut other_client = TestClient::connect(&cluster, "other").await;
    client.publish(&online("normal")).await;
    client.publish(&over_budget(online("slow"))).await;
    wait_for_messages(&cluster, 1, 1).await;
    ingest.kill().await;

    let ingest = cluster.start(&["ingest"]).await;
    wait_for_slow_clients(&ingest, 1.0).await;
    other_client.publish(&online("other")).await;
    client.publish(&offline_message()).await;
    client.publish(&online("last")).await;
    // The broker may deliver messages again that the killed process did not acknowledge.
    eventually("the messages after the restart", || async {
        let mut all = Vec::new();
        for topic in ["kafka.ingress_topic", "kafka.slow_topic"] {
            let brokers = cluster.setting("kafka.brokers").to_owned();
            let topic = cluster.setting(topic).to_owned();
            let reading = tokio::task::spawn_blocking(move || read_topic(&brokers, &topic));
            let payloads = reading.await.unwrap();
            let texts: Vec<String> = payloads
                .iter()
                .map(|payload| String::from_utf8_lossy(payload).into_owned())
                .collect();
            all.push(texts.concat());
        }
        assert!(!all[0].contains("\"last\""), "the order is lost: {all:?}");
        (all[0].contains("\"other\"") && all[1].contains("\"last\"")).then_some(())
    })
    .await;
    let _record = cluster.start(&["record"]).await;
    wait_for_name(&cluster, &client.id, "last").await;
    wait_for_slow_clients(&ingest, 0.0).await;
}

/// Of the heartbeats over the budget, the latest must be recorded, although the client sends nothing
/// afterwards.
#[tokio::test]
async fn latest_heartbeat_over_the_budget_is_recorded() {
    let cluster = Cluster::new()
        .await
        .set("client_budget.message_burst", 1)
        .set("client_budget.messages_per_second", 1);
    let ingest = cluster.start(&["ingest"]).await;
    let _record = cluster.start(&["record"]).await;
    let api = cluster.start(&["api"]).await;
    let mut client = TestClient::connect(&cluster, "heartbeats").await;
    client.publish(&online("client")).await;
    api.wait_until_connected(&client.id).await;
    let topic = data_out_topic(&client.id);
    for _ in 0..20 {
        client.client.publish_heartbeat(&topic).await;
    }
    client.publish(&offline_message()).await;
    api.wait_until_disconnected(&client.id).await;
    for _ in 0..20 {
        client.client.publish_heartbeat(&topic).await;
    }
    api.wait_until_connected(&client.id).await;
    let dropped = ingest
        .read_metric(
            "cloud_connector_ingest_qos0_dropped_total",
            "later_heartbeat",
        )
        .await;
    assert!(dropped > 10.0, "{dropped} heartbeats were dropped");
}

/// Without Kafka, the recorder applies messages in the order of their arrival. A heartbeat that is
/// forwarded late must not restore a client that has disconnected since.
#[tokio::test]
async fn deferred_heartbeat_is_recorded_before_the_next_message_without_kafka() {
    let cluster = Cluster::new()
        .await
        .set("kafka.brokers", "")
        .set("client_budget.message_burst", 2)
        .set("client_budget.messages_per_second", 1);
    let process = cluster.start(&[]).await;
    let mut first = TestClient::connect(&cluster, "first").await;
    let mut second = TestClient::connect(&cluster, "second").await;
    for client in [&mut first, &mut second] {
        client.publish(&online("client")).await;
        process.wait_until_connected(&client.id).await;
    }
    // The offline message of the first client is sent after its heartbeats, and the offline message of
    // the second client before its heartbeats.
    let topic = data_out_topic(&first.id);
    for _ in 0..20 {
        first.client.publish_heartbeat(&topic).await;
    }
    first.publish(&offline_message()).await;
    second.publish(&offline_message()).await;
    process.wait_until_disconnected(&first.id).await;
    process.wait_until_disconnected(&second.id).await;
    let topic = data_out_topic(&second.id);
    // The second client uses its budget up, so that its heartbeats are deferred, too.
    for _ in 0..20 {
        second.client.publish_qos0(&topic, b"garbage").await;
    }
    for _ in 0..20 {
        second.client.publish_heartbeat(&topic).await;
    }
    // The window of the first client ends before the window of the second client.
    process.wait_until_connected(&second.id).await;
    assert_eq!(process.list_client_ids().await.unwrap(), [second.id]);
}

#[tokio::test]
async fn ingest_without_its_slow_topic_is_not_ready_until_the_topic_is_created() {
    let cluster = Cluster::new()
        .await
        .set("kafka.slow_topic", unique_id("missing"));
    let ingest = cluster.start_without_waiting(&["ingest"]).await;
    // The connection to the broker is open, but no message is forwarded.
    eventually("the missing topic in /readiness", || async {
        let (status, body) = ingest.readiness().await;
        let reason = body["components"]["mqtt_ingest"].as_str()?;
        (status == 503 && reason == "topic missing").then_some(())
    })
    .await;
    let mut client = TestClient::connect(&cluster, "waiting").await;
    client.publish(&online("client")).await;
    let (code, output) = cluster.run_command(&["migrate", "--topics"]).await;
    assert_eq!(code, Some(0), "{output}");
    ingest.wait_until_ready().await;
    let _record = cluster.start(&["record"]).await;
    wait_for_name(&cluster, &client.id, "client").await;
}
