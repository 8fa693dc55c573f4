//! Each service away for ten seconds under light traffic: nothing is lost, every role recovers by
//! itself, and meanwhile readiness and the API tell the truth.

use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;

use crate::support::cluster::{Cluster, ConnectorProcess};
use crate::support::mqtt::{Connect, RawClient, control_out, data_in, data_out, online};
use crate::support::services::Service;
use crate::support::{TIMEOUT, eventually};

const OUTAGE_DURATION: Duration = Duration::from_secs(10);

struct Roles {
    ingest: ConnectorProcess,
    record: ConnectorProcess,
    api: ConnectorProcess,
}

async fn start(cluster: &Cluster) -> Roles {
    Roles {
        ingest: cluster.start(&["ingest"]).await,
        record: cluster.start(&["record"]).await,
        api: cluster.start(&["api"]).await,
    }
}

/// A client that comes online under a new client_id every so often, until told to stop. Returns the
/// names whose message the broker acknowledged.
fn traffic(
    address: String,
    mut stop: tokio::sync::oneshot::Receiver<()>,
) -> tokio::task::JoinHandle<Vec<String>> {
    tokio::spawn(async move {
        let mut acknowledged = Vec::new();
        for n in 0.. {
            let client_id = format!("traffic-{n:04}");
            if publish_once(&address, &client_id).await {
                acknowledged.push(client_id);
            }
            let pause = tokio::time::sleep(Duration::from_millis(100));
            tokio::select! {
                () = pause => {}
                _ = &mut stop => break,
            }
        }
        acknowledged
    })
}

/// Connects without a will, says online, leaves without a word: the row must stay.
async fn publish_once(address: &str, client_id: &str) -> bool {
    let Ok(stream) = tokio::net::TcpStream::connect(address).await else {
        return false;
    };
    let mut client = RawClient::from_tcp_stream(stream);
    if client.send_connect(&Connect::new(client_id)).await != 0 {
        return false;
    }
    let payload = online().to_string();
    client
        .publish(&control_out(client_id), payload.as_bytes())
        .await
        .is_some()
}

/// Keeps a service away for the whole time, and looks in the middle.
async fn during_outage<F: Future<Output = ()>>(service: &Service, meanwhile: F) {
    service.stop().await;
    let back = Instant::now() + OUTAGE_DURATION;
    tokio::time::timeout(TIMEOUT, meanwhile)
        .await
        .expect("nobody told the truth");
    tokio::time::sleep_until(back).await;
    service.start_process().await;
}

async fn assert_all_recorded(roles: &Roles, expected: &[String]) {
    assert!(
        expected.len() > 20,
        "only {} messages: too little to tell",
        expected.len()
    );
    for process in [&roles.ingest, &roles.record, &roles.api] {
        process.wait_until_ready().await;
    }
    eventually("every acknowledged message is recorded", || async {
        let listed = roles.api.list_client_ids().await.ok()?;
        expected
            .iter()
            .all(|client_id| listed.contains(client_id))
            .then_some(())
    })
    .await;
}

fn reports_problem(output: &serde_json::Value, part: &str) -> bool {
    output["components"][part]
        .as_str()
        .is_some_and(|text| text != "ok")
}

#[tokio::test]
async fn mosquitto_down_for_ten_seconds() {
    let cluster = Cluster::new().await;
    let roles = start(&cluster).await;
    let address = format!("127.0.0.1:{}", cluster.mosquitto.port);
    let (stop, stopped) = tokio::sync::oneshot::channel();
    let traffic = traffic(address, stopped);
    eventually("some traffic", || async {
        (roles.api.list_client_ids().await.ok()?.len() > 5).then_some(())
    })
    .await;
    let known = roles.api.list_client_ids().await.unwrap()[0].clone();
    during_outage(&cluster.mosquitto, async {
        assert!(reports_problem(
            &roles.ingest.wait_until_not_ready().await,
            "mqtt_ingest"
        ));
        assert!(reports_problem(
            &roles.api.wait_until_not_ready().await,
            "mqtt_api"
        ));
        // Who is connected is still known; a message cannot be sent, and that is output.
        assert!(roles.api.list_client_ids().await.is_ok());
        let (status, body) = roles
            .api
            .send_message(&known, json!({"directive": "x"}))
            .await;
        assert_eq!(status, 503, "{body}");
        assert_eq!(body["title"], "Error passing message to rhc client");
        assert!(body["id"].is_string());
        assert_eq!(roles.record.readiness().await.0, 200);
    })
    .await;
    eventually("traffic again", || async {
        (roles.ingest.readiness().await.0 == 200).then_some(())
    })
    .await;
    let before = roles.api.list_client_ids().await.unwrap().len();
    eventually("more traffic", || async {
        (roles.api.list_client_ids().await.ok()?.len() > before + 20).then_some(())
    })
    .await;
    stop.send(()).unwrap();
    assert_all_recorded(&roles, &traffic.await.unwrap()).await;
    let (status, _) = roles
        .api
        .send_message(&known, json!({"directive": "x"}))
        .await;
    assert_eq!(status, 201);
}

#[tokio::test]
async fn kafka_down_for_ten_seconds() {
    let cluster = Cluster::with_services(
        Service::mosquitto().await,
        None,
        Some(Service::kafka().await),
    )
    .await;
    let roles = start(&cluster).await;
    let address = format!("127.0.0.1:{}", cluster.mosquitto.port);
    let (stop, stopped) = tokio::sync::oneshot::channel();
    let traffic = traffic(address, stopped);
    eventually("some traffic", || async {
        (roles.api.list_client_ids().await.ok()?.len() > 5).then_some(())
    })
    .await;
    during_outage(cluster.kafka.as_ref().unwrap(), async {
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
    assert_all_recorded(&roles, &traffic.await.unwrap()).await;
}

#[tokio::test]
async fn postgres_down_for_ten_seconds() {
    let cluster = Cluster::with_services(
        Service::mosquitto().await,
        Some(Service::postgres().await),
        None,
    )
    .await;
    let roles = start(&cluster).await;
    let address = format!("127.0.0.1:{}", cluster.mosquitto.port);
    let (stop, stopped) = tokio::sync::oneshot::channel();
    let traffic = traffic(address, stopped);
    eventually("some traffic", || async {
        (roles.api.list_client_ids().await.ok()?.len() > 5).then_some(())
    })
    .await;
    during_outage(cluster.postgres.as_ref().unwrap(), async {
        assert!(reports_problem(
            &roles.record.wait_until_not_ready().await,
            "store"
        ));
        assert!(reports_problem(
            &roles.api.wait_until_not_ready().await,
            "store"
        ));
        // Never an empty list, never "not connected".
        assert_eq!(roles.api.list_client_ids().await, Err(503));
        let (status, body) = roles
            .api
            .send("traffic-0000", json!({"directive": "x"}))
            .await;
        assert_eq!(status, 503, "{body}");
        let path = "/v2/connections/traffic-0000/status";
        let response = roles.api.request("GET", path).send().await.unwrap();
        assert_eq!(response.status(), 503);
        assert!(response.headers().contains_key("retry-after"));
        assert_eq!(roles.ingest.readiness().await.0, 200);
    })
    .await;
    stop.send(()).unwrap();
    assert_all_recorded(&roles, &traffic.await.unwrap()).await;
}

/// A client that says nothing but a sign of life when it reconnects, while nobody takes it: its will
/// has told that it is gone, so the sign must wait, too.
#[tokio::test]
async fn heartbeat_published_while_ingest_is_down_is_recorded() {
    let cluster = Cluster::new().await;
    let Roles {
        ingest,
        record,
        api,
    } = start(&cluster).await;
    let address = format!("127.0.0.1:{}", cluster.mosquitto.port);
    let client_id = crate::support::unique_id("quiet");
    let connect = Connect::new(&client_id).offline_will();
    let mut client = RawClient::connect(&address, &connect).await;
    client
        .must_publish(&control_out(&client_id), &online())
        .await;
    api.wait_until_connected(&client_id).await;
    ingest.kill().await;
    drop(client);
    // The broker must have published the will before the client is back.
    let mut watcher = RawClient::connect(
        &address,
        &Connect::new("watcher").user("cloud-connector", "cc-secret"),
    )
    .await;
    watcher.subscribe(&control_out(&client_id)).await;
    let mut client = RawClient::connect(&address, &connect).await;
    drop(client);
    watcher.next_message().await;
    client = RawClient::connect(&address, &connect).await;
    client.publish_heartbeat(&data_out(&client_id)).await;
    // ReceivedResponse in order: the broker has the sign when it answers this.
    client.subscribe(&data_in(&client_id)).await;
    let _ingest = cluster.start(&["ingest"]).await;
    let marker = crate::support::unique_id("marker");
    let mut other = RawClient::connect(&address, &Connect::new(&marker)).await;
    other.must_publish(&control_out(&marker), &online()).await;
    api.wait_until_connected(&marker).await;
    eventually("it is back", || async {
        let told = record
            .metric("cloud_connector_messages_applied_total", "offline")
            .await;
        let there = api.list_client_ids().await.ok()?.contains(&client_id);
        (told > 0.5 && there).then_some(())
    })
    .await;
}

/// Mosquitto 2.0 holds messages back if `ingest` comes back while everything that may be under way to
/// it is unacknowledged and signs of life wait with the rest: so its limit must not be reached.
#[tokio::test]
async fn broker_backlog_is_delivered_when_ingest_restarts() {
    /// What may be under way to a client by the settings that showed it.
    const MAX_IN_FLIGHT: usize = 2000;
    let cluster = Cluster::new().await;
    let Roles {
        ingest,
        record: _record,
        api,
    } = start(&cluster).await;
    let address = format!("127.0.0.1:{}", cluster.mosquitto.port);
    ingest.signal("STOP");
    let mut busy_client = RawClient::connect(&address, &Connect::new("busy_client")).await;
    for _ in 1..MAX_IN_FLIGHT {
        let payload = online().to_string();
        let topic = control_out("busy_client");
        busy_client
            .send_publish(&topic, payload.as_bytes(), false)
            .await;
    }
    let topic = control_out("busy_client");
    busy_client
        .must_publish_after_pending(&topic, &online(), MAX_IN_FLIGHT - 1)
        .await;
    ingest.kill().await;
    let mut waiting = Vec::new();
    for n in 0..50 {
        let client_id = format!("waiting-{n:02}");
        let mut client = RawClient::connect(&address, &Connect::new(&client_id)).await;
        client.publish_heartbeat(&data_out(&client_id)).await;
        client
            .must_publish(&control_out(&client_id), &online())
            .await;
        waiting.push(client_id);
    }
    let _ingest = cluster.start(&["ingest"]).await;
    eventually("everybody who waited is recorded", || async {
        let listed = api.list_client_ids().await.ok()?;
        let all = waiting.iter().all(|client_id| listed.contains(client_id));
        all.then_some(())
    })
    .await;
}
