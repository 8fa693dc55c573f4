//! Messages that are larger than the embedded broker accepts for their topic, or larger than its packet
//! limit.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::time::timeout;

use test_support::connector::DEFAULT_ORG_ID;
use test_support::mqtt::{
    Connect, control_out_topic, data_in_topic, data_out_topic, online_message,
};
use test_support::{Connector, Deployment, RawClient, eventually, unique_id};

const MIB: usize = 1024 * 1024;
/// Number of bytes that a dead letter contains.
const TRUNCATED_BYTES: usize = 64 * 1024;

fn response(content: &str) -> Vec<u8> {
    json!({"type": "data", "message_id": "r1", "response_to": "m1", "version": 1,
        "sent": "2020-01-01T00:00:00Z", "directive": "echo", "metadata": {}, "content": content})
    .to_string()
    .into_bytes()
}

/// Publishes a QoS 1 message as paho does: after a lost connection, it reconnects and publishes the
/// message again, until the broker acknowledges it. Returns the number of connects, and whether the
/// broker acknowledged the message within `duration`.
async fn publish_until_acknowledged(
    connector: &Connector,
    client_id: &str,
    payload: &[u8],
    duration: Duration,
) -> (usize, bool) {
    let end = Instant::now() + duration;
    let mut connects = 0;
    while Instant::now() < end {
        let mut client = RawClient::connect_tcp(&connector.mqtt_address).await;
        if client.send_connect(&Connect::new(client_id)).await != 0 {
            // The rate limit for connects rejects the client.
            continue;
        }
        connects += 1;
        if client
            .publish(&data_out_topic(client_id), payload)
            .await
            .is_some()
        {
            return (connects, true);
        }
    }
    (connects, false)
}

#[tokio::test]
async fn message_that_is_too_large_for_its_topic_is_acknowledged_and_becomes_a_dead_letter() {
    let connector = Connector::start().await;
    let client_id = unique_id("oversized");
    let payload = response(&"x".repeat(3 * MIB));
    let duration = Duration::from_secs(20);
    let (connects, is_acknowledged) =
        publish_until_acknowledged(&connector, &client_id, &payload, duration).await;
    assert_eq!((connects, is_acknowledged), (1, true));
    let deployment = Deployment::Embedded(Box::new(connector));
    let dead_letters = deployment.dead_letters().await;
    let [dead_letter] = &dead_letters[..] else {
        panic!("{dead_letters:?}");
    };
    assert_eq!(dead_letter["reason"], "payload_too_large");
    assert_eq!(dead_letter["client_id"], client_id);
    assert_eq!(dead_letter["size"], payload.len());
    let sha256 = format!("{:x}", Sha256::digest(&payload));
    assert_eq!(dead_letter["sha256"], sha256);
    let truncated = deployment
        .count_rows("SELECT length(payload) FROM dead_letters")
        .await;
    assert_eq!(truncated, i64::try_from(TRUNCATED_BYTES).unwrap());
}

#[tokio::test]
async fn packet_above_the_packet_limit_is_resent_forever_so_the_limit_must_be_high() {
    let connector = Connector::builder()
        .set("broker.max_packet_size", 2 * MIB)
        .start()
        .await;
    let client_id = unique_id("looping");
    let payload = response(&"x".repeat(3 * MIB));
    let duration = Duration::from_secs(2);
    let (connects, is_acknowledged) =
        publish_until_acknowledged(&connector, &client_id, &payload, duration).await;
    eprintln!("{connects} connects in {duration:?}");
    assert!(!is_acknowledged);
    assert!(connects > 2, "{connects} connects in {duration:?}");
    let too_large = connector
        .read_metric(
            "cloud_connector_broker_rejections_total",
            "packet_too_large",
        )
        .await;
    assert!(too_large > 2.0, "{too_large}");
}

/// Receives messages and returns the content of each one in a response, as the text of a JSON string.
async fn echo(client: &mut RawClient, client_id: &str) {
    let (_, message) = client.next_message().await;
    let response = json!({"type": "data", "message_id": "r1", "version": 1,
        "response_to": message["message_id"], "sent": "2020-01-01T00:00:00Z", "directive": "echo",
        "metadata": {}, "content": message["content"].to_string()});
    let puback = client
        .publish(&data_out_topic(client_id), response.to_string().as_bytes())
        .await;
    assert!(puback.is_some(), "the broker closed the connection");
}

#[tokio::test]
async fn echoed_content_of_the_largest_request_is_accepted() {
    let connector = Connector::start().await;
    let client_id = unique_id("echo");
    let connect = Connect::new(&client_id);
    let mut client = RawClient::connect(&connector.mqtt_address, &connect).await;
    assert_eq!(client.subscribe(&data_in_topic(&client_id)).await, 1);
    client
        .must_publish(&control_out_topic(&client_id), &online_message())
        .await;
    // In the response, each quotation mark needs four bytes, twice as many as in the request.
    let overhead = json!({"directive": "echo", "payload": ""})
        .to_string()
        .len();
    let payload = "\"".repeat((MIB - overhead) / 2);
    let body: Value = json!({"directive": "echo", "payload": payload});
    assert!(body.to_string().len() > MIB - 2);
    let (status, _) = connector.send_message(&client_id, body).await;
    assert_eq!(status, 201);
    echo(&mut client, &client_id).await;
    assert_eq!(connector.list_client_ids(DEFAULT_ORG_ID).await, [client_id]);
    let deployment = Deployment::Embedded(Box::new(connector));
    assert_eq!(deployment.dead_letters().await, Vec::<Value>::new());
}

#[tokio::test]
async fn message_that_is_larger_than_an_mqtt_5_client_accepts_is_not_reported_as_sent() {
    let connector = Connector::start().await;
    let client_id = unique_id("small");
    let mut client = RawClient::connect_tcp(&connector.mqtt_address).await;
    // The property with the id 0x27 is the maximum packet size.
    let properties = [5, 0x27, 0, 0, 0x10, 0];
    let mut body = b"\x00\x04MQTT\x05\x02\x00\x1e".to_vec();
    body.extend(properties);
    body.extend(u16::try_from(client_id.len()).unwrap().to_be_bytes());
    body.extend(client_id.as_bytes());
    let packet = [&[0x10, u8::try_from(body.len()).unwrap()], &body[..]].concat();
    assert_eq!(client.send_connect_packet(&packet, 5).await, 0);
    assert_eq!(client.subscribe(&data_in_topic(&client_id)).await, 1);
    client
        .must_publish(&control_out_topic(&client_id), &online_message())
        .await;
    let message = |len| json!({"directive": "x", "payload": "x".repeat(len)});
    let (status, body) = connector.send_message(&client_id, message(4096)).await;
    assert_eq!(status, 503, "{body}");
    assert!(body.to_string().contains("4096"), "{body}");
    let (status, _) = connector.send_message(&client_id, message(3000)).await;
    assert_eq!(status, 201);
    let (_, received) = client.next_message().await;
    assert_eq!(received["content"].as_str().unwrap().len(), 3000);
}

/// Returns the resident memory of the connector in MiB.
fn resident_memory(connector: &Connector) -> u64 {
    test_support::resident_memory_mib(connector.pid())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_messages_that_are_too_large_need_little_memory() {
    let connector = Connector::builder()
        .set("client_budget.byte_burst", 100 * MIB)
        .start()
        .await;
    let before = resident_memory(&connector);
    let payload: std::sync::Arc<[u8]> = response(&"x".repeat(4_190_000)).into();
    let mut tasks = Vec::new();
    for _ in 0..60 {
        let client_id = unique_id("oversized");
        let connect = Connect::new(&client_id).without_keep_alive();
        let mut client = RawClient::connect(&connector.mqtt_address, &connect).await;
        let payload = payload.clone();
        tasks.push(tokio::spawn(async move {
            let topic = data_out_topic(&client_id);
            client.publish(&topic, &payload).await.is_some()
        }));
    }
    let mut peak = before;
    while tasks.iter().any(|task| !task.is_finished()) {
        peak = peak.max(resident_memory(&connector));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for task in tasks {
        assert!(task.await.unwrap(), "the broker closed a connection");
    }
    eprintln!("resident memory: {before} MiB before, at most {peak} MiB");
    // The payloads have 250 MB together.
    assert!(peak < before + 60, "{before} MiB before, {peak} MiB");
    assert_eq!(connector.readiness().await.0, 200);
}

#[tokio::test]
async fn unfinished_message_that_is_too_large_does_not_delay_other_large_messages() {
    let connector = Connector::start().await;
    let mut stalled_clients = Vec::new();
    for _ in 0..40 {
        let client_id = unique_id("stalled");
        let connect = Connect::new(&client_id).without_keep_alive();
        let mut client = RawClient::connect(&connector.mqtt_address, &connect).await;
        // The header of a packet of 4 MiB, which exceeds the limit of all topics.
        client.write(&[0x32, 0x80, 0x80, 0x80, 0x02]).await;
        stalled_clients.push(client);
    }
    let client_id = unique_id("good");
    let connect = Connect::new(&client_id);
    let mut client = RawClient::connect(&connector.mqtt_address, &connect).await;
    let topic = data_out_topic(&client_id);
    let payload = response(&"x".repeat(MIB));
    // A packet that waits for the memory of others would wait until they are aborted.
    let publish = timeout(Duration::from_secs(10), client.publish(&topic, &payload));
    assert!(publish.await.expect("the message was delayed").is_some());
    let metric = "cloud_connector_broker_rejections_total";
    eventually("no rejected packets", || async {
        (connector.read_metric(metric, "").await == 0.0).then_some(())
    })
    .await;
}
