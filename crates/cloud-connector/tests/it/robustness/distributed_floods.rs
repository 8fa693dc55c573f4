//! Clients that send without a pause do not stop the messages of other clients and callers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::task::JoinHandle;

use test_support::cluster::{Cluster, ConnectorProcess};
use test_support::mqtt::{
    Connect, RawClient, control_out_topic, data_out_topic, offline_message, online_message,
};
use test_support::{eventually, unique_id};

/// Number of good clients that come online, one after the other, while the attack continues.
const GOOD_CLIENTS: usize = 5;
/// Budget of each client, which is the default of the setting.
const MESSAGE_BURST: f64 = 200.0;
const MESSAGES_PER_SECOND: f64 = 20.0;

/// Clients that send without a pause.
struct Attack {
    is_stopped: Arc<AtomicBool>,
    attackers: Vec<JoinHandle<RawClient>>,
    ids: Vec<String>,
    started_at: Instant,
}

impl Attack {
    /// Starts attackers. Each attacker calls `send` until the attack is stopped.
    async fn start<F, Fut>(cluster: &Cluster, count: usize, send: F) -> Self
    where
        F: Fn(RawClient, String, usize) -> Fut + Clone + Send + 'static,
        Fut: Future<Output = RawClient> + Send,
    {
        let is_stopped = Arc::<AtomicBool>::default();
        let mut attack = Self {
            is_stopped: is_stopped.clone(),
            attackers: Vec::new(),
            ids: Vec::new(),
            started_at: Instant::now(),
        };
        for _ in 0..count {
            let id = unique_id("attacker");
            let mut client = connect(cluster, &id).await;
            client
                .must_publish(&control_out_topic(&id), &online_message())
                .await;
            let (send, is_stopped) = (send.clone(), is_stopped.clone());
            attack.ids.push(id.clone());
            attack.attackers.push(tokio::spawn(async move {
                let mut number = 0;
                while !is_stopped.load(Ordering::Relaxed) {
                    client = send(client, id.clone(), number).await;
                    number += 1;
                }
                client
            }));
        }
        attack
    }

    fn assert_continues(&self) {
        let has_ended = |attacker: &JoinHandle<_>| attacker.is_finished();
        assert!(
            !self.attackers.iter().any(has_ended),
            "an attacker was disconnected"
        );
    }

    /// Stops the attack. Returns the id and the connection of each attacker.
    async fn stop(self) -> Vec<(String, RawClient)> {
        self.is_stopped.store(true, Ordering::Relaxed);
        let mut clients = Vec::new();
        for (id, attacker) in self.ids.into_iter().zip(self.attackers) {
            clients.push((id, attacker.await.unwrap()));
        }
        clients
    }
}

async fn connect(cluster: &Cluster, id: &str) -> RawClient {
    let address = format!("127.0.0.1:{}", cluster.mosquitto.port);
    RawClient::connect(&address, &Connect::new(id).without_keep_alive()).await
}

/// Good clients come online while the attack continues. Prints the time until each is listed.
async fn assert_good_clients_are_recorded(
    cluster: &Cluster,
    api: &ConnectorProcess,
    attack: &Attack,
) {
    let mut durations = Vec::new();
    for _ in 0..GOOD_CLIENTS {
        let id = unique_id("good");
        let mut client = connect(cluster, &id).await;
        let published_at = Instant::now();
        client
            .must_publish(&control_out_topic(&id), &online_message())
            .await;
        api.wait_until_connected(&id).await;
        durations.push(published_at.elapsed());
    }
    attack.assert_continues();
    println!("time from publish to visible during the attack: {durations:?}");
}

/// Sends QoS 1 messages and waits for their PUBACKs.
async fn publish_several(mut client: RawClient, topic: &str, payloads: &[String]) -> RawClient {
    for payload in payloads {
        client.send_publish(topic, payload.as_bytes(), false).await;
    }
    for _ in payloads {
        client
            .read_packet()
            .await
            .expect("the broker closed the connection");
    }
    client
}

#[tokio::test]
async fn good_clients_are_recorded_while_clients_flood_qos0_garbage() {
    const ATTACKERS: usize = 10;
    let cluster = Cluster::new().await;
    let ingest = cluster.start(&["ingest"]).await;
    let record = cluster.start(&["record"]).await;
    let api = cluster.start(&["api"]).await;
    let attack = Attack::start(&cluster, ATTACKERS, |mut client, id, _| async move {
        for _ in 0..50 {
            let garbage = b"{\"type\":\"connection-status\", garbage";
            client.publish_qos0(&control_out_topic(&id), garbage).await;
        }
        client
    })
    .await;
    eventually("dropped messages", || async {
        let dropped = ingest
            .read_metric("cloud_connector_ingest_qos0_dropped_total", "over_budget")
            .await;
        (dropped > 10_000.0).then_some(())
    })
    .await;
    assert_good_clients_are_recorded(&cluster, &api, &attack).await;

    // Only the messages within the budgets reached the database.
    let dead_letters = record
        .read_metric("cloud_connector_dead_letters_total", "")
        .await;
    let seconds = attack.started_at.elapsed().as_secs_f64();
    let received = ingest
        .read_metric("cloud_connector_messages_received_total", "")
        .await;
    println!("ingest received {received} messages in {seconds:.1} s");
    let max_per_attacker = MESSAGE_BURST + MESSAGES_PER_SECOND * seconds;
    let attackers = ATTACKERS as f64;
    assert!(
        dead_letters > 0.0 && dead_letters <= attackers * max_per_attacker,
        "{dead_letters} dead letters after {seconds} s"
    );
    attack.stop().await;
}

/// Returns an online message with 110 kB of facts.
fn large_online_message(name: &str) -> String {
    let mut message = online_message();
    message["content"]["canonical_facts"]["fqdn"] = name.into();
    message["content"]["tags"]["padding"] = "x".repeat(110_000).into();
    message.to_string()
}

#[tokio::test]
async fn good_clients_are_recorded_while_clients_flood_large_online_messages() {
    const ATTACKERS: usize = 8;
    // Each pair of messages uses the bytes of nearly two seconds of this budget, so the attackers are over it at
    // any speed of the machine. The offline and online messages of good clients stay within it.
    let cluster = Cluster::new()
        .await
        .set("client_budget.bytes_per_second", 65_536)
        .set("client_budget.byte_burst", 1_048_576);
    let ingest = cluster.start(&["ingest"]).await;
    let _record = cluster.start(&["record"]).await;
    let api = cluster.start(&["api"]).await;
    let attack = Attack::start(&cluster, ATTACKERS, |client, id, number| async move {
        let offline = offline_message().to_string();
        let online = large_online_message(&format!("n{number}"));
        publish_several(client, &control_out_topic(&id), &[offline, online]).await
    })
    .await;
    eventually("all attackers to be slow", || async {
        let slow_clients = ingest
            .read_metric("cloud_connector_ingest_slow_clients", "")
            .await;
        (slow_clients > ATTACKERS as f64 - 0.5).then_some(())
    })
    .await;
    assert_good_clients_are_recorded(&cluster, &api, &attack).await;

    // The state of each attacker after the attack is its last message: the order of its messages is
    // kept, although the first messages were in the ingress topic.
    for (number, (id, mut client)) in attack.stop().await.into_iter().enumerate() {
        let topic = control_out_topic(&id);
        client.must_publish(&topic, &online_message()).await;
        if number % 2 == 0 {
            client.must_publish(&topic, &offline_message()).await;
            api.wait_until_disconnected(&id).await;
        } else {
            wait_for_tags(&api, &id, &json!({"make": "raw"})).await;
        }
    }
    eventually("all attackers to return to the normal topics", || async {
        let slow_clients = ingest
            .read_metric("cloud_connector_ingest_slow_clients", "")
            .await;
        (slow_clients < 0.5).then_some(())
    })
    .await;
}

/// Waits until the connection of a client has these tags.
async fn wait_for_tags(api: &ConnectorProcess, client_id: &str, expected: &Value) {
    eventually(&format!("{client_id} with the tags {expected}"), || async {
        let request = api.request("GET", "/v2/connections?limit=100");
        let body: Value = request.send().await.unwrap().json().await.unwrap();
        let rows = body["data"].as_array().unwrap();
        let row = rows.iter().find(|row| row["client_id"] == client_id)?;
        (row["tags"] == *expected).then_some(())
    })
    .await;
}

/// A client that responds to pings.
fn spawn_responder(mut client: RawClient, id: String) -> JoinHandle<()> {
    tokio::spawn(async move {
        let topic = control_out_topic(&id);
        loop {
            let (_, message) = client.next_message().await;
            if message["content"]["command"] == "ping" {
                let pong = json!({"type": "event", "message_id": "p", "version": 1,
                    "response_to": message["message_id"], "sent": "2026-01-02T15:04:05Z",
                    "content": "pong"});
                let payload = pong.to_string();
                client.send_publish(&topic, payload.as_bytes(), false).await;
            }
        }
    })
}

async fn post(api: &ConnectorProcess, path: &str, body: Option<Value>) -> u16 {
    let mut request = api.request("POST", path);
    if let Some(body) = body {
        request = request.json(&body);
    }
    request.send().await.unwrap().status().as_u16()
}

/// The attackers flood the topics on which they would respond to a ping and to a check, while callers
/// ping and check them. The requests of another caller must succeed.
#[tokio::test]
async fn requests_succeed_while_pinged_clients_flood_large_responses() {
    const ATTACKERS: usize = 4;
    const REQUESTS: usize = 20;
    let cluster = Cluster::new().await;
    let _ingest = cluster.start(&["ingest"]).await;
    let _record = cluster.start(&["record"]).await;
    let api = cluster.start(&["api"]).await;
    let good_id = unique_id("good");
    let mut good_client = connect(&cluster, &good_id).await;
    good_client
        .must_publish(&control_out_topic(&good_id), &online_message())
        .await;
    for topic in ["control/in", "data/in"] {
        let filter = format!("redhat/insights/{good_id}/{topic}");
        assert_eq!(good_client.subscribe(&filter).await, 1);
    }
    api.wait_until_connected(&good_id).await;
    let responder = spawn_responder(good_client, good_id.clone());

    let content: Arc<str> = "x".repeat(1_000_000).into();
    let attack = Attack::start(&cluster, ATTACKERS, move |client, id, _| {
        let content = content.clone();
        async move {
            let data = format!(r#"{{"type":"data","response_to":"","content":"{content}"}}"#);
            let event = format!(r#"{{"type":"event","response_to":"","content":"{content}"}}"#);
            // Without a limit in front of Mosquitto, its queue would grow, and requests would wait for
            // the broker (docs/decisions/029-packet-filter-for-mosquitto.md).
            tokio::time::sleep(Duration::from_millis(50)).await;
            let client = publish_several(client, &data_out_topic(&id), &[data]).await;
            publish_several(client, &control_out_topic(&id), &[event]).await
        }
    })
    .await;
    for id in &attack.ids {
        api.wait_until_connected(id).await;
    }
    let api = Arc::new(api);
    let is_stopped = Arc::<AtomicBool>::default();
    let mut hostile_pings = Vec::new();
    for id in &attack.ids {
        for action in ["ping?timeout=2", "check?level=3&directive=echo&timeout=2"] {
            let path = format!("/v2/connections/{id}/{action}");
            let (api, is_stopped) = (api.clone(), is_stopped.clone());
            hostile_pings.push(tokio::spawn(async move {
                while !is_stopped.load(Ordering::Relaxed) {
                    post(&api, &path, None).await;
                }
            }));
        }
    }
    eventually("a client that is no longer listened to", || async {
        let unsubscribed = api
            .read_metric("cloud_connector_unexpected_responses_total", "unsubscribed")
            .await;
        (unsubscribed > 0.5).then_some(())
    })
    .await;

    let mut results = Vec::new();
    let mut longest = Duration::ZERO;
    for _ in 0..REQUESTS {
        let started_at = Instant::now();
        let message = json!({"directive": "echo", "payload": "x"});
        let path = format!("/v2/connections/{good_id}/message");
        results.push(post(&api, &path, Some(message)).await);
        let path = format!("/v2/connections/{good_id}/ping?timeout=5");
        results.push(post(&api, &path, None).await);
        longest = longest.max(started_at.elapsed());
    }
    attack.assert_continues();
    println!("longest message and ping during the attack: {longest:?}");
    let expected = [201, 200].repeat(REQUESTS);
    assert_eq!(results, expected);
    // On a busy machine, a health check can exceed its timeout once.
    eventually("readiness during the attack", || async {
        let (status, body) = api.readiness().await;
        assert_eq!(body["components"]["mqtt_responses"], "ok", "{body}");
        (status == 200).then_some(())
    })
    .await;
    is_stopped.store(true, Ordering::Relaxed);
    for ping in hostile_pings {
        ping.await.unwrap();
    }
    attack.stop().await;
    responder.abort();
}
