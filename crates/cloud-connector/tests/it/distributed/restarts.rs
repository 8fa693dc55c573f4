//! Tests of restarts of external services and of `ingest`. While a service is down, readiness and
//! the API report the outage. Afterwards, every role continues without a restart, and every message
//! that the broker acknowledged is recorded.

use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;

use test_support::cluster::{Cluster, ConnectorProcess};
use test_support::mqtt::{
    Connect, RawClient, control_out_topic, data_in_topic, data_out_topic, online_message,
};
use test_support::services::Service;
use test_support::{CONDITION_TIMEOUT, eventually, unique_id};

/// Time for which a test stops an external service.
const OUTAGE_DURATION: Duration = Duration::from_secs(10);

/// One connector process per role.
struct RoleProcesses {
    ingest: ConnectorProcess,
    record: ConnectorProcess,
    api: ConnectorProcess,
}

async fn start_roles(cluster: &Cluster) -> RoleProcesses {
    RoleProcesses {
        ingest: cluster.start(&["ingest"]).await,
        record: cluster.start(&["record"]).await,
        api: cluster.start(&["api"]).await,
    }
}

/// Publishes an online message of a new client every 100 milliseconds, until `stop` resolves.
/// Returns the ids of the clients whose message the broker acknowledged.
fn spawn_online_publisher(
    address: String,
    mut stop: tokio::sync::oneshot::Receiver<()>,
) -> tokio::task::JoinHandle<Vec<String>> {
    tokio::spawn(async move {
        let mut acknowledged_ids = Vec::new();
        for n in 0.. {
            let client_id = format!("publisher-{n:04}");
            if publish_online(&address, &client_id).await {
                acknowledged_ids.push(client_id);
            }
            let pause = tokio::time::sleep(Duration::from_millis(100));
            tokio::select! {
                () = pause => {}
                _ = &mut stop => break,
            }
        }
        acknowledged_ids
    })
}

/// Publishes an online message and closes the connection. The client has no last will, so the
/// client is still listed afterwards. Returns whether the broker acknowledged the message.
async fn publish_online(address: &str, client_id: &str) -> bool {
    let Ok(stream) = tokio::net::TcpStream::connect(address).await else {
        return false;
    };
    let mut client = RawClient::from_tcp_stream(stream);
    if client.send_connect(&Connect::new(client_id)).await != 0 {
        return false;
    }
    let payload = online_message().to_string();
    client
        .publish(&control_out_topic(client_id), payload.as_bytes())
        .await
        .is_some()
}

/// Stops a service for `OUTAGE_DURATION`. Runs `checks` while the service is down.
async fn run_during_outage<F: Future<Output = ()>>(service: &Service, checks: F) {
    service.stop().await;
    let outage_end = Instant::now() + OUTAGE_DURATION;
    tokio::time::timeout(CONDITION_TIMEOUT, checks)
        .await
        .expect("the checks during the outage timed out");
    tokio::time::sleep_until(outage_end).await;
    service.start_process().await;
}

/// Waits until all roles are ready and the clients with `expected_ids` are listed.
async fn assert_all_recorded(roles: &RoleProcesses, expected_ids: &[String]) {
    assert!(
        expected_ids.len() > 20,
        "only {} messages were acknowledged; the test needs more than 20",
        expected_ids.len()
    );
    for process in [&roles.ingest, &roles.record, &roles.api] {
        process.wait_until_ready().await;
    }
    eventually("every acknowledged message to be recorded", || async {
        let listed_ids = roles.api.list_client_ids().await.ok()?;
        expected_ids
            .iter()
            .all(|client_id| listed_ids.contains(client_id))
            .then_some(())
    })
    .await;
}

/// Returns whether the readiness response reports a problem with the component.
fn reports_problem(readiness: &serde_json::Value, component: &str) -> bool {
    readiness["components"][component]
        .as_str()
        .is_some_and(|text| text != "ok")
}

#[tokio::test]
async fn messages_are_recorded_despite_a_mosquitto_outage_of_ten_seconds() {
    let cluster = Cluster::new().await;
    let roles = start_roles(&cluster).await;
    let address = format!("127.0.0.1:{}", cluster.mosquitto.port);
    let (stop, stopped) = tokio::sync::oneshot::channel();
    let publisher = spawn_online_publisher(address, stopped);
    eventually("the first listed clients", || async {
        (roles.api.list_client_ids().await.ok()?.len() > 5).then_some(())
    })
    .await;
    let listed_id = roles.api.list_client_ids().await.unwrap()[0].clone();
    run_during_outage(&cluster.mosquitto, async {
        assert!(reports_problem(
            &roles.ingest.wait_until_not_ready().await,
            "mqtt_ingest"
        ));
        assert!(reports_problem(
            &roles.api.wait_until_not_ready().await,
            "mqtt_api"
        ));
        // The request for the list of connections succeeds, because it needs only the database. The
        // request to send a message returns 503.
        assert!(roles.api.list_client_ids().await.is_ok());
        let (status, body) = roles
            .api
            .send_message(&listed_id, json!({"directive": "x"}))
            .await;
        assert_eq!(status, 503, "{body}");
        assert_eq!(body["title"], "Error passing message to rhc client");
        assert!(body["id"].is_string());
        assert_eq!(roles.record.readiness().await.0, 200);
    })
    .await;
    eventually("ingest to be ready", || async {
        (roles.ingest.readiness().await.0 == 200).then_some(())
    })
    .await;
    let listed_count_before = roles.api.list_client_ids().await.unwrap().len();
    eventually("more listed clients", || async {
        (roles.api.list_client_ids().await.ok()?.len() > listed_count_before + 20).then_some(())
    })
    .await;
    stop.send(()).unwrap();
    assert_all_recorded(&roles, &publisher.await.unwrap()).await;
    let (status, _) = roles
        .api
        .send_message(&listed_id, json!({"directive": "x"}))
        .await;
    assert_eq!(status, 201);
}

#[tokio::test]
async fn messages_are_recorded_despite_a_kafka_outage_of_ten_seconds() {
    let cluster = Cluster::with_services(
        Service::start_mosquitto().await,
        None,
        Some(Service::start_kafka().await),
    )
    .await;
    let roles = start_roles(&cluster).await;
    let address = format!("127.0.0.1:{}", cluster.mosquitto.port);
    let (stop, stopped) = tokio::sync::oneshot::channel();
    let publisher = spawn_online_publisher(address, stopped);
    eventually("the first listed clients", || async {
        (roles.api.list_client_ids().await.ok()?.len() > 5).then_some(())
    })
    .await;
    run_during_outage(cluster.kafka.as_ref().unwrap(), async {
        assert!(reports_problem(
            &roles.ingest.wait_until_not_ready().await,
            "kafka_producer"
        ));
        assert!(reports_problem(
            &roles.record.wait_until_not_ready().await,
            "kafka_ingress"
        ));
        assert_eq!(roles.api.readiness().await.0, 200);
        assert!(roles.api.list_client_ids().await.is_ok());
    })
    .await;
    stop.send(()).unwrap();
    assert_all_recorded(&roles, &publisher.await.unwrap()).await;
}

#[tokio::test]
async fn messages_are_recorded_despite_a_postgres_outage_of_ten_seconds() {
    let cluster = Cluster::with_services(
        Service::start_mosquitto().await,
        Some(Service::start_postgres().await),
        None,
    )
    .await;
    let roles = start_roles(&cluster).await;
    let address = format!("127.0.0.1:{}", cluster.mosquitto.port);
    let (stop, stopped) = tokio::sync::oneshot::channel();
    let publisher = spawn_online_publisher(address, stopped);
    eventually("the first listed clients", || async {
        (roles.api.list_client_ids().await.ok()?.len() > 5).then_some(())
    })
    .await;
    run_during_outage(cluster.postgres.as_ref().unwrap(), async {
        assert!(reports_problem(
            &roles.record.wait_until_not_ready().await,
            "store"
        ));
        assert!(reports_problem(
            &roles.api.wait_until_not_ready().await,
            "store"
        ));
        // The API returns 503, not an empty list or the status "disconnected".
        assert_eq!(roles.api.list_client_ids().await, Err(503));
        let (status, body) = roles
            .api
            .send_message("publisher-0000", json!({"directive": "x"}))
            .await;
        assert_eq!(status, 503, "{body}");
        let path = "/v2/connections/publisher-0000/status";
        let response = roles.api.request("GET", path).send().await.unwrap();
        assert_eq!(response.status(), 503);
        assert!(response.headers().contains_key("retry-after"));
        assert_eq!(roles.ingest.readiness().await.0, 200);
    })
    .await;
    stop.send(()).unwrap();
    assert_all_recorded(&roles, &publisher.await.unwrap()).await;
}

/// While `ingest` is down, the broker publishes the last will and the client publishes a heartbeat.
/// The broker must queue both messages, so that the client is listed as connected afterwards.
#[tokio::test]
async fn heartbeat_published_while_ingest_is_down_is_recorded() {
    let cluster = Cluster::new().await;
    let RoleProcesses {
        ingest,
        record,
        api,
    } = start_roles(&cluster).await;
    let address = format!("127.0.0.1:{}", cluster.mosquitto.port);
    let client_id = unique_id("heartbeat-only");
    let connect = Connect::new(&client_id).offline_will();
    let mut client = RawClient::connect(&address, &connect).await;
    client
        .must_publish(&control_out_topic(&client_id), &online_message())
        .await;
    api.wait_until_connected(&client_id).await;
    ingest.kill().await;
    drop(client);
    // The test waits until the broker has published the last will.
    let mut last_will_subscriber = RawClient::connect(
        &address,
        &Connect::new("watcher").credentials("cloud-connector", "cc-secret"),
    )
    .await;
    last_will_subscriber
        .subscribe(&control_out_topic(&client_id))
        .await;
    let mut client = RawClient::connect(&address, &connect).await;
    drop(client);
    last_will_subscriber.next_message().await;
    client = RawClient::connect(&address, &connect).await;
    client.publish_heartbeat(&data_out_topic(&client_id)).await;
    // The broker processes packets in order. When the broker sends the SUBACK, the broker has
    // received the heartbeat.
    client.subscribe(&data_in_topic(&client_id)).await;
    let _ingest = cluster.start(&["ingest"]).await;
    let other_id = unique_id("other");
    let mut other_client = RawClient::connect(&address, &Connect::new(&other_id)).await;
    other_client
        .must_publish(&control_out_topic(&other_id), &online_message())
        .await;
    api.wait_until_connected(&other_id).await;
    eventually("the client to be listed after its last will", || async {
        let applied_offline_messages = record
            .read_metric("cloud_connector_messages_applied_total", "offline")
            .await;
        let is_listed = api.list_client_ids().await.ok()?.contains(&client_id);
        (applied_offline_messages > 0.5 && is_listed).then_some(())
    })
    .await;
}

/// With a low `max_inflight_messages`, Mosquitto 2.0 stops delivering messages to a reconnected
/// client if QoS 0 messages are queued. With the configuration in
/// `deploy/mosquitto/mosquitto.conf`, Mosquitto delivers the whole backlog.
#[tokio::test]
async fn broker_backlog_is_delivered_when_ingest_restarts() {
    /// With this value of `max_inflight_messages`, Mosquitto stopped delivering messages.
    const TOO_LOW_MAX_INFLIGHT_MESSAGES: usize = 2000;
    let cluster = Cluster::new().await;
    let RoleProcesses {
        ingest,
        record: _record,
        api,
    } = start_roles(&cluster).await;
    let address = format!("127.0.0.1:{}", cluster.mosquitto.port);
    ingest.send_signal("STOP");
    let mut busy_client = RawClient::connect(&address, &Connect::new("busy")).await;
    for _ in 1..TOO_LOW_MAX_INFLIGHT_MESSAGES {
        let payload = online_message().to_string();
        let topic = control_out_topic("busy");
        busy_client
            .send_publish(&topic, payload.as_bytes(), false)
            .await;
    }
    let topic = control_out_topic("busy");
    busy_client
        .must_publish_with_messages_in_flight(
            &topic,
            &online_message(),
            TOO_LOW_MAX_INFLIGHT_MESSAGES - 1,
        )
        .await;
    ingest.kill().await;
    let mut client_ids = Vec::new();
    for n in 0..50 {
        let client_id = format!("queued-{n:02}");
        let mut client = RawClient::connect(&address, &Connect::new(&client_id)).await;
        client.publish_heartbeat(&data_out_topic(&client_id)).await;
        client
            .must_publish(&control_out_topic(&client_id), &online_message())
            .await;
        client_ids.push(client_id);
    }
    let _ingest = cluster.start(&["ingest"]).await;
    eventually("all clients to be listed", || async {
        let listed_ids = api.list_client_ids().await.ok()?;
        let are_all_listed = client_ids.iter().all(|id| listed_ids.contains(id));
        are_all_listed.then_some(())
    })
    .await;
}
