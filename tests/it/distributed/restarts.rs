//! Each service away for ten seconds under light traffic: nothing is lost, every role recovers by
//! itself, and meanwhile readiness and the API tell the truth.

use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;

use crate::support::fleet::{Fleet, Process};
use crate::support::mqtt::{Connect, RawClient, control_out, data_in, data_out, online};
use crate::support::services::Service;
use crate::support::{TIMEOUT, eventually};

const AWAY: Duration = Duration::from_secs(10);

struct Roles {
    ingest: Process,
    record: Process,
    api: Process,
}

async fn start(fleet: &Fleet) -> Roles {
    Roles {
        ingest: fleet.start(&["ingest"]).await,
        record: fleet.start(&["record"]).await,
        api: fleet.start(&["api"]).await,
    }
}

/// A client that comes online under a new name every so often, until told to stop. Returns the
/// names whose message the broker acknowledged.
fn traffic(
    address: String,
    mut stop: tokio::sync::oneshot::Receiver<()>,
) -> tokio::task::JoinHandle<Vec<String>> {
    tokio::spawn(async move {
        let mut acknowledged = Vec::new();
        for n in 0.. {
            let name = format!("traffic-{n:04}");
            if publish_once(&address, &name).await {
                acknowledged.push(name);
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
async fn publish_once(address: &str, name: &str) -> bool {
    let Ok(stream) = tokio::net::TcpStream::connect(address).await else {
        return false;
    };
    let mut client = RawClient::over_tcp(stream);
    if client.handshake(&Connect::new(name)).await != 0 {
        return false;
    }
    let payload = online().to_string();
    client
        .publish(&control_out(name), payload.as_bytes())
        .await
        .is_some()
}

/// Keeps a service away for the whole time, and looks in the middle.
async fn away<F: Future<Output = ()>>(service: &Service, meanwhile: F) {
    service.stop().await;
    let back = Instant::now() + AWAY;
    tokio::time::timeout(TIMEOUT, meanwhile)
        .await
        .expect("nobody told the truth");
    tokio::time::sleep_until(back).await;
    service.start_again().await;
}

async fn all_recorded(roles: &Roles, expected: &[String]) {
    assert!(
        expected.len() > 20,
        "only {} messages: too little to tell",
        expected.len()
    );
    for process in [&roles.ingest, &roles.record, &roles.api] {
        process.wait_ready(true).await;
    }
    eventually("every acknowledged message is recorded", || async {
        let listed = roles.api.listed().await.ok()?;
        expected
            .iter()
            .all(|name| listed.contains(name))
            .then_some(())
    })
    .await;
}

fn says(said: &serde_json::Value, part: &str) -> bool {
    said["parts"][part]
        .as_str()
        .is_some_and(|text| text != "ok")
}

#[tokio::test]
async fn mosquitto_away_for_ten_seconds() {
    let fleet = Fleet::new().await;
    let roles = start(&fleet).await;
    let address = format!("127.0.0.1:{}", fleet.mosquitto.port);
    let (stop, stopped) = tokio::sync::oneshot::channel();
    let traffic = traffic(address, stopped);
    eventually("some traffic", || async {
        (roles.api.listed().await.ok()?.len() > 5).then_some(())
    })
    .await;
    let known = roles.api.listed().await.unwrap()[0].clone();
    away(&fleet.mosquitto, async {
        assert!(says(&roles.ingest.wait_ready(false).await, "mqtt_ingest"));
        assert!(says(&roles.api.wait_ready(false).await, "mqtt_api"));
        // Who is connected is still known; a message cannot be sent, and that is said.
        assert!(roles.api.listed().await.is_ok());
        let (status, body) = roles.api.send(&known, json!({"directive": "x"})).await;
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
    let before = roles.api.listed().await.unwrap().len();
    eventually("more traffic", || async {
        (roles.api.listed().await.ok()?.len() > before + 20).then_some(())
    })
    .await;
    stop.send(()).unwrap();
    all_recorded(&roles, &traffic.await.unwrap()).await;
    let (status, _) = roles.api.send(&known, json!({"directive": "x"})).await;
    assert_eq!(status, 201);
}

#[tokio::test]
async fn kafka_away_for_ten_seconds() {
    let fleet = Fleet::with(
        Service::mosquitto().await,
        None,
        Some(Service::kafka().await),
    )
    .await;
    let roles = start(&fleet).await;
    let address = format!("127.0.0.1:{}", fleet.mosquitto.port);
    let (stop, stopped) = tokio::sync::oneshot::channel();
    let traffic = traffic(address, stopped);
    eventually("some traffic", || async {
        (roles.api.listed().await.ok()?.len() > 5).then_some(())
    })
    .await;
    away(fleet.kafka.as_ref().unwrap(), async {
        assert!(says(&roles.ingest.wait_ready(false).await, "kafka"));
        assert!(says(&roles.record.wait_ready(false).await, "kafka"));
        assert_eq!(roles.api.readiness().await.0, 200);
        assert!(roles.api.listed().await.is_ok());
    })
    .await;
    stop.send(()).unwrap();
    all_recorded(&roles, &traffic.await.unwrap()).await;
}

#[tokio::test]
async fn postgres_away_for_ten_seconds() {
    let fleet = Fleet::with(
        Service::mosquitto().await,
        Some(Service::postgres().await),
        None,
    )
    .await;
    let roles = start(&fleet).await;
    let address = format!("127.0.0.1:{}", fleet.mosquitto.port);
    let (stop, stopped) = tokio::sync::oneshot::channel();
    let traffic = traffic(address, stopped);
    eventually("some traffic", || async {
        (roles.api.listed().await.ok()?.len() > 5).then_some(())
    })
    .await;
    away(fleet.postgres.as_ref().unwrap(), async {
        assert!(says(&roles.record.wait_ready(false).await, "store"));
        assert!(says(&roles.api.wait_ready(false).await, "store"));
        // Never an empty list, never "not connected".
        assert_eq!(roles.api.listed().await, Err(503));
        let (status, body) = roles
            .api
            .send("traffic-0000", json!({"directive": "x"}))
            .await;
        assert_eq!(status, 503, "{body}");
        let path = "/v2/connections/traffic-0000/status";
        let answer = roles.api.request("GET", path).send().await.unwrap();
        assert_eq!(answer.status(), 503);
        assert!(answer.headers().contains_key("retry-after"));
        assert_eq!(roles.ingest.readiness().await.0, 200);
    })
    .await;
    stop.send(()).unwrap();
    all_recorded(&roles, &traffic.await.unwrap()).await;
}

/// A client that says nothing but a sign of life when it reconnects, while nobody takes it: its will
/// has told that it is gone, so the sign must wait, too.
#[tokio::test]
async fn a_sign_of_life_waits_for_ingest() {
    let fleet = Fleet::new().await;
    let Roles {
        ingest,
        record,
        api,
    } = start(&fleet).await;
    let address = format!("127.0.0.1:{}", fleet.mosquitto.port);
    let me = crate::support::unique("quiet");
    let connect = Connect::new(&me).offline_will();
    let mut client = RawClient::connect(&address, &connect).await;
    client.must_publish(&control_out(&me), &online()).await;
    api.wait_for(&me, true).await;
    ingest.kill().await;
    drop(client);
    // The broker must have published the will before the client is back.
    let mut watcher = RawClient::connect(
        &address,
        &Connect::new("watcher").user("cloud-connector", "cc-secret"),
    )
    .await;
    watcher.subscribe(&control_out(&me)).await;
    let mut client = RawClient::connect(&address, &connect).await;
    drop(client);
    watcher.message().await;
    client = RawClient::connect(&address, &connect).await;
    client.show_life(&data_out(&me)).await;
    // ReceivedResponse in order: the broker has the sign when it answers this.
    client.subscribe(&data_in(&me)).await;
    let _ingest = fleet.start(&["ingest"]).await;
    let marker = crate::support::unique("marker");
    let mut other = RawClient::connect(&address, &Connect::new(&marker)).await;
    other.must_publish(&control_out(&marker), &online()).await;
    api.wait_for(&marker, true).await;
    eventually("it is back", || async {
        let told = record
            .metric("cloud_connector_messages_applied_total", "offline")
            .await;
        let there = api.listed().await.ok()?.contains(&me);
        (told > 0.5 && there).then_some(())
    })
    .await;
}

/// Mosquitto 2.0 holds messages back if `ingest` comes back while everything that may be under way to
/// it is unacknowledged and signs of life wait with the rest: so its limit must not be reached.
#[tokio::test]
async fn what_waited_for_ingest_behind_much_else_comes_at_once() {
    /// What may be under way to a client by the settings that showed it.
    const UNDER_WAY: usize = 2000;
    let fleet = Fleet::new().await;
    let Roles {
        ingest,
        record: _record,
        api,
    } = start(&fleet).await;
    let address = format!("127.0.0.1:{}", fleet.mosquitto.port);
    ingest.signal("STOP");
    let mut talker = RawClient::connect(&address, &Connect::new("talker")).await;
    for _ in 1..UNDER_WAY {
        let payload = online().to_string();
        let topic = control_out("talker");
        talker.publish_only(&topic, payload.as_bytes(), false).await;
    }
    let topic = control_out("talker");
    talker
        .must_publish_after(&topic, &online(), UNDER_WAY - 1)
        .await;
    ingest.kill().await;
    let mut waiting = Vec::new();
    for n in 0..50 {
        let name = format!("waiting-{n:02}");
        let mut client = RawClient::connect(&address, &Connect::new(&name)).await;
        client.show_life(&data_out(&name)).await;
        client.must_publish(&control_out(&name), &online()).await;
        waiting.push(name);
    }
    let _ingest = fleet.start(&["ingest"]).await;
    eventually("everybody who waited is recorded", || async {
        let listed = api.listed().await.ok()?;
        let all = waiting.iter().all(|name| listed.contains(name));
        all.then_some(())
    })
    .await;
}
