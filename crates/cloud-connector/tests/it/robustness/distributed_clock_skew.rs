//! Roles whose clocks differ. The order of a heartbeat and an offline message must not depend on
//! the clocks of the hosts that forwarded them.

use sqlx::Row as _;

use test_support::cluster::{Cluster, ConnectorProcess};
use test_support::mqtt::{Connect, RawClient, control_out_topic, data_out_topic, online_message};
use test_support::services::{self, Service};
use test_support::{ClockOffset, eventually, unique_id};

/// The clock of one `ingest` host. The clocks of the other processes are right.
const FAST_CLOCK: ClockOffset = ClockOffset::from_seconds(3600);

/// A cluster whose `ingest` has a fast clock.
struct SkewedCluster {
    cluster: Cluster,
    /// `None` after [`stop_fast_ingest`](Self::stop_fast_ingest).
    fast_ingest: Option<ConnectorProcess>,
    record: ConnectorProcess,
    api: ConnectorProcess,
}

impl SkewedCluster {
    async fn start() -> Self {
        let cluster = Cluster::new().await;
        Self {
            fast_ingest: Some(cluster.start_with_clock(&["ingest"], FAST_CLOCK).await),
            record: cluster.start(&["record"]).await,
            api: cluster.start(&["api"]).await,
            cluster,
        }
    }

    /// Connects a client and waits until the API lists it. The broker publishes an offline message
    /// when the connection ends.
    async fn connect_client(&self, client_id: &str) -> RawClient {
        let mut client = self.reconnect_client(client_id).await;
        client
            .must_publish(&control_out_topic(client_id), &online_message())
            .await;
        self.api.wait_until_connected(client_id).await;
        client
    }

    /// Connects a client that does not send an online message.
    async fn reconnect_client(&self, client_id: &str) -> RawClient {
        let address = format!("127.0.0.1:{}", self.cluster.mosquitto.port);
        RawClient::connect(&address, &Connect::new(client_id).offline_will()).await
    }

    /// Publishes a heartbeat and waits until it is recorded or ignored.
    async fn record_heartbeat(&self, client_id: &str, client: &mut RawClient) {
        client.publish_heartbeat(&data_out_topic(client_id)).await;
        self.wait_until_processed("heartbeat").await;
    }

    /// Waits until the recorder has processed a heartbeat or an offline message, even if the
    /// message was ignored because of a later message.
    async fn wait_until_processed(&self, kind: &str) {
        eventually(&format!("the {kind} to be processed"), || async {
            let applied = self
                .record
                .read_metric("cloud_connector_messages_applied_total", kind)
                .await;
            let superseded = self
                .record
                .read_metric("cloud_connector_messages_ignored_total", "superseded")
                .await;
            (applied + superseded > 0.5).then_some(())
        })
        .await;
    }

    async fn is_listed(&self, client_id: &str) -> bool {
        let client_ids = self.api.list_client_ids().await.unwrap();
        client_ids.iter().any(|id| id == client_id)
    }

    /// Stops the `ingest` with the fast clock. The broker then queues messages for its session.
    async fn stop_fast_ingest(&mut self) {
        let ingest = self.fast_ingest.take().unwrap();
        ingest.send_signal("TERM");
        assert!(ingest.wait_for_exit().await.success());
    }

    /// Starts an `ingest` with the right clock, which takes over the session at the broker.
    async fn start_accurate_ingest(&self) -> ConnectorProcess {
        self.cluster.start(&["ingest"]).await
    }
}

#[tokio::test]
async fn offline_message_ends_the_connection_despite_an_earlier_heartbeat_with_a_faster_clock() {
    let mut skewed = SkewedCluster::start().await;
    let client_id = unique_id("offline-last");
    let mut client = skewed.connect_client(&client_id).await;
    skewed.record_heartbeat(&client_id, &mut client).await;
    skewed.stop_fast_ingest().await;
    let _ingest = skewed.start_accurate_ingest().await;
    drop(client);
    skewed.wait_until_processed("offline").await;
    assert!(
        !skewed.is_listed(&client_id).await,
        "the client disconnected after its heartbeat, but it is still listed as connected"
    );
}

/// The broker delivers the offline message at the start of the new connection. At that time,
/// `ingest` has just connected.
#[tokio::test]
async fn offline_message_that_the_broker_queued_ends_the_connection_despite_a_faster_clock() {
    let mut skewed = SkewedCluster::start().await;
    let client_id = unique_id("offline-queued");
    let mut client = skewed.connect_client(&client_id).await;
    skewed.record_heartbeat(&client_id, &mut client).await;
    skewed.stop_fast_ingest().await;
    drop(client);
    let _ingest = skewed.start_accurate_ingest().await;
    skewed.wait_until_processed("offline").await;
    assert!(
        !skewed.is_listed(&client_id).await,
        "the client disconnected after its heartbeat, but it is still listed as connected"
    );
}

#[tokio::test]
async fn heartbeat_restores_the_connection_despite_an_earlier_offline_message_with_a_faster_clock()
{
    let mut skewed = SkewedCluster::start().await;
    let client_id = unique_id("heartbeat-last");
    let client = skewed.connect_client(&client_id).await;
    drop(client);
    skewed.api.wait_until_disconnected(&client_id).await;
    skewed.stop_fast_ingest().await;
    let _ingest = skewed.start_accurate_ingest().await;
    let mut client = skewed.reconnect_client(&client_id).await;
    skewed.record_heartbeat(&client_id, &mut client).await;
    assert!(
        skewed.is_listed(&client_id).await,
        "the client sent a heartbeat after its offline message, but it is not listed as connected"
    );
}

/// Returns the epoch of the latest online message and of the latest heartbeat of a client.
async fn stored_epochs(cluster: &Cluster, client_id: &str) -> (Option<i64>, Option<i64>) {
    let mut connection = cluster.connect_to_database().await;
    let row =
        sqlx::query("SELECT presence_epoch, heartbeat_epoch FROM connections WHERE client_id = $1")
            .bind(client_id)
            .fetch_one(&mut connection)
            .await
            .unwrap();
    (row.get(0), row.get(1))
}

/// Returns the current epoch of each session of an `ingest` at a broker.
async fn ingest_epochs(cluster: &Cluster) -> Vec<i64> {
    let mut connection = cluster.connect_to_database().await;
    let rows = sqlx::query("SELECT epoch FROM ingest_sessions")
        .fetch_all(&mut connection)
        .await
        .unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

#[tokio::test]
async fn ingest_forwards_while_postgres_is_down_and_gets_an_epoch_afterwards() {
    let cluster = Cluster::with_services(
        Service::start_mosquitto().await,
        Some(Service::start_postgres().await),
        None,
    )
    .await;
    let postgres = cluster.postgres.as_ref().unwrap();
    postgres.stop().await;
    // The process becomes ready although it cannot get an epoch.
    let ingest = cluster.start(&["ingest"]).await;
    let client_id = unique_id("no-epoch");
    let address = format!("127.0.0.1:{}", cluster.mosquitto.port);
    let mut client = RawClient::connect(&address, &Connect::new(&client_id)).await;
    client
        .must_publish(&control_out_topic(&client_id), &online_message())
        .await;
    let brokers = cluster.setting("kafka.brokers").to_owned();
    let topic = cluster.setting("kafka.ingress_topic").to_owned();
    eventually("the message to be forwarded to Kafka", || async {
        let (brokers, topic) = (brokers.clone(), topic.clone());
        let reading =
            tokio::task::spawn_blocking(move || services::read_topic(&brokers, &topic)).await;
        (!reading.unwrap().is_empty()).then_some(())
    })
    .await;
    assert_eq!(ingest.readiness().await.0, 200);
    postgres.start_process().await;
    let _record = cluster.start(&["record"]).await;
    let api = cluster.start(&["api"]).await;
    api.wait_until_connected(&client_id).await;
    let epoch = eventually("an epoch of the session", || async {
        ingest_epochs(&cluster).await.first().copied()
    })
    .await;
    // The process may still wait for the response of the database, so the first heartbeats can be
    // without an epoch.
    let client = tokio::sync::Mutex::new(client);
    eventually("a heartbeat with the epoch of the session", || async {
        let topic = data_out_topic(&client_id);
        client.lock().await.publish_heartbeat(&topic).await;
        let (online_epoch, heartbeat_epoch) = stored_epochs(&cluster, &client_id).await;
        assert_eq!(online_epoch, None);
        (heartbeat_epoch == Some(epoch)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn messages_of_a_shared_subscription_have_no_epoch() {
    let cluster = Cluster::new()
        .await
        .set("mqtt.shared_subscription_group", "group");
    let _ingest = cluster.start(&["ingest"]).await;
    let _record = cluster.start(&["record"]).await;
    let api = cluster.start(&["api"]).await;
    let client_id = unique_id("shared");
    let address = format!("127.0.0.1:{}", cluster.mosquitto.port);
    let mut client = RawClient::connect(&address, &Connect::new(&client_id)).await;
    client
        .must_publish(&control_out_topic(&client_id), &online_message())
        .await;
    api.wait_until_connected(&client_id).await;
    assert_eq!(stored_epochs(&cluster, &client_id).await, (None, None));
    assert!(ingest_epochs(&cluster).await.is_empty());
}
