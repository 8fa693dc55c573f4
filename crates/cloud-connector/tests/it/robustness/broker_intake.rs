//! Last wills, unfinished packets and overload of the embedded broker.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use sqlx::Connection as _;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use test_support::connector::DEFAULT_ORG_ID;
use test_support::mqtt::{
    CLOSED_WITHOUT_REASON, Connect, control_out_topic, data_out_topic, online_message,
};
use test_support::{
    CONDITION_TIMEOUT, Connector, RawClient, eventually, resident_memory_mib, unique_id,
};

/// Size of the unfinished packets. Below the default of `broker.max_packet_size`.
const UNFINISHED_PACKET_BYTES: usize = 1024 * 1024;
/// First byte of a CONNECT packet.
const CONNECT: u8 = 0x10;
/// First byte of a PUBLISH packet with QoS 1.
const PUBLISH_QOS_1: u8 = 0x32;

/// A last will of a client of one dialect.
struct Will {
    topic: fn(&str) -> String,
    payload: Vec<u8>,
}

fn handshake_topic(client_id: &str) -> String {
    format!("redhat/insights/in/{client_id}")
}

fn handshake() -> Vec<u8> {
    json!({"type": "host-handshake", "message_id": unique_id("handshake"), "version": 1,
        "sent": jiff::Timestamp::now().to_string(),
        "payload": {"canonical_facts": {"fqdn": "will.example"}}})
    .to_string()
    .into_bytes()
}

/// Returns the last wills that would connect a client if a client published them.
fn wills_that_are_not_offline_messages() -> Vec<Will> {
    let response = json!({"type": "data", "message_id": "r1", "response_to": "m1", "version": 1,
        "sent": "2020-01-01T00:00:00Z", "directive": "echo", "metadata": {}, "content": "x"});
    vec![
        Will {
            topic: control_out_topic,
            payload: online_message().to_string().into_bytes(),
        },
        // A heartbeat.
        Will {
            topic: data_out_topic,
            payload: Vec::new(),
        },
        Will {
            topic: data_out_topic,
            payload: response.to_string().into_bytes(),
        },
        Will {
            topic: handshake_topic,
            payload: handshake(),
        },
    ]
}

/// Connects a client with the last will and publishes an online message in the dialect of the last
/// will.
async fn connect_and_come_online(connector: &Connector, connect: &Connect) -> RawClient {
    let mut client = RawClient::connect(&connector.mqtt_address, connect).await;
    let client_id = &connect.client_id;
    let (will_topic, _) = connect.will.as_ref().unwrap();
    if *will_topic == handshake_topic(client_id) {
        client
            .publish_retained(&handshake_topic(client_id), &handshake())
            .await;
    } else {
        client
            .must_publish(&control_out_topic(client_id), &online_message())
            .await;
    }
    client
}

/// Publishes a message of another client. The recorder has then written everything that the broker
/// accepted before the call.
async fn wait_until_recorded(connector: &Connector) {
    let client_id = unique_id("barrier");
    for _ in 0..2 {
        let mut client =
            RawClient::connect(&connector.mqtt_address, &Connect::new(&client_id)).await;
        client
            .must_publish(&control_out_topic(&client_id), &online_message())
            .await;
        client.disconnect().await;
    }
    connector.wait_until_disconnected(&client_id).await;
}

#[tokio::test]
async fn a_last_will_never_connects_a_client() {
    let connector = Connector::start().await;
    let mut client_ids = Vec::new();
    for will_delay_seconds in [0, 1] {
        for protocol_level in [4, 5] {
            for will_retain in [false, true] {
                for will in wills_that_are_not_offline_messages() {
                    let client_id = unique_id("ghost");
                    let topic = (will.topic)(&client_id);
                    let mut connect = Connect::new(&client_id).will(&topic, &will.payload);
                    connect.protocol_level = protocol_level;
                    connect.will_retain = will_retain;
                    connect.will_delay_seconds = will_delay_seconds;
                    connect.session_expiry_seconds = 300;
                    drop(connect_and_come_online(&connector, &connect).await);
                    client_ids.push(client_id);
                }
            }
        }
    }
    for client_id in &client_ids {
        connector.wait_until_disconnected(client_id).await;
    }
    // The last client has the same will delay as the others, and an offline message as its will.
    // After the broker has published this will, it has published all wills.
    let mut connect = Connect::new(&unique_id("last"))
        .with_mqtt_5()
        .offline_will();
    connect.will_delay_seconds = 1;
    connect.session_expiry_seconds = 300;
    let client = connect_and_come_online(&connector, &connect).await;
    let metric = "cloud_connector_messages_received_total";
    let received_before = connector.read_metric(metric, "").await;
    drop(client);
    eventually("the delayed will", || async {
        (connector.read_metric(metric, "").await > received_before).then_some(())
    })
    .await;
    wait_until_recorded(&connector).await;
    assert_eq!(
        connector.list_client_ids(DEFAULT_ORG_ID).await,
        Vec::<String>::new(),
        "a last will connected these clients"
    );
    // A will may end only the connection of its own client.
    let victim = unique_id("victim");
    let connect = Connect::new(&unique_id("attacker")).with_mqtt_5().will(
        &control_out_topic(&victim),
        &online_message().to_string().into_bytes(),
    );
    let mut client = RawClient::connect_tcp(&connector.mqtt_address).await;
    assert_ne!(client.send_connect(&connect).await, 0);
}

/// Measures the highest resident memory of the connector in MiB while `attack` runs, and for
/// `settle_time` after that.
async fn peak_memory_during<T>(
    connector: &Connector,
    settle_time: Duration,
    attack: impl Future<Output = T>,
) -> (u64, T) {
    let mut peak = resident_memory_mib(connector.pid());
    let mut attack = std::pin::pin!(attack);
    let result = loop {
        tokio::select! {
            result = &mut attack => break result,
            () = tokio::time::sleep(Duration::from_millis(50)) => {}
        }
        peak = peak.max(resident_memory_mib(connector.pid()));
    };
    let end = Instant::now() + settle_time;
    while Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(50)).await;
        peak = peak.max(resident_memory_mib(connector.pid()));
    }
    (peak, result)
}

/// Returns the fixed header of a packet.
fn fixed_header(first_byte: u8, mut remaining_length: usize) -> Vec<u8> {
    let mut header = vec![first_byte];
    loop {
        let byte = u8::try_from(remaining_length & 0x7f).unwrap();
        remaining_length >>= 7;
        if remaining_length == 0 {
            header.push(byte);
            return header;
        }
        header.push(byte | 0x80);
    }
}

/// Opens connections and sends `bytes` on each of them. A connection that the broker closes is
/// opened again until the returned task is aborted. Adds each opened connection to `opened`.
fn spawn_unfinished_connects(
    address: &str,
    count: usize,
    bytes: Vec<u8>,
    opened: &Arc<AtomicUsize>,
) -> Vec<JoinHandle<()>> {
    let bytes: Arc<[u8]> = bytes.into();
    let spawn_one = |_| {
        let (address, bytes, opened) = (address.to_owned(), bytes.clone(), opened.clone());
        tokio::spawn(async move {
            loop {
                if let Ok(mut stream) = TcpStream::connect(&address).await {
                    opened.fetch_add(1, Ordering::Relaxed);
                    let _ = stream.write_all(&bytes).await;
                    RawClient::from_tcp_stream(stream).wait_for_close().await;
                }
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        })
    };
    (0..count).map(spawn_one).collect()
}

/// Connects like a real client, which tries again after the broker closed the connection.
async fn connect_with_retries(connector: &Connector, connect: &Connect) -> RawClient {
    loop {
        let mut client = RawClient::connect_tcp(&connector.mqtt_address).await;
        match client.send_connect(connect).await {
            0 => return client,
            CLOSED_WITHOUT_REASON => tokio::time::sleep(Duration::from_millis(100)).await,
            code => panic!("the broker rejected the client with the reason code {code}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unfinished_connect_packets_use_little_memory_and_do_not_lock_out_other_clients() {
    let connector = Connector::builder()
        .set("broker.connect_limit.burst", 1000)
        .start()
        .await;
    let before = resident_memory_mib(connector.pid());
    let mut unfinished_packet = fixed_header(CONNECT, UNFINISHED_PACKET_BYTES - 5);
    unfinished_packet.extend(b"\0\x04MQTT\x04\x02\0\x3c\0\x06");
    unfinished_packet.resize(256 * 1024, b'x');
    // A CONNECT packet that is not too large, but is also not complete.
    let mut small_unfinished_packet = fixed_header(CONNECT, 60_000);
    small_unfinished_packet.extend(b"\0\x04MQTT\x04\x02\0\x3c\0\x06");
    small_unfinished_packet.resize(59_000, b'x');

    let address = &connector.mqtt_address;
    let opened = Arc::new(AtomicUsize::new(0));
    let mut attack = spawn_unfinished_connects(address, 1000, unfinished_packet, &opened);
    attack.extend(spawn_unfinished_connects(
        address,
        1500,
        small_unfinished_packet,
        &opened,
    ));
    let client_ids: Vec<String> = (0..5).map(|_| unique_id("good")).collect();
    let connect_all = async {
        eventually(
            "an attack with more connections than may be pending",
            || async { (opened.load(Ordering::Relaxed) > 1000).then_some(()) },
        )
        .await;
        for client_id in &client_ids {
            let mut client = connect_with_retries(&connector, &Connect::new(client_id)).await;
            client
                .must_publish(&control_out_topic(client_id), &online_message())
                .await;
        }
    };
    let (peak, connected) = peak_memory_during(
        &connector,
        Duration::from_secs(3),
        timeout(CONDITION_TIMEOUT, connect_all),
    )
    .await;
    for task in attack {
        task.abort();
    }
    eprintln!("resident memory: {before} MiB before the attack, at most {peak} MiB");
    assert!(
        peak < before + 150,
        "resident memory: {before} MiB before the attack, {peak} MiB during the attack"
    );
    connected.expect("the good clients could not connect during the attack");
}

async fn connect_clients(
    connector: &Connector,
    count: usize,
    protocol_level: u8,
) -> Vec<(String, RawClient)> {
    let mut clients = Vec::new();
    for _ in 0..count {
        let client_id = unique_id("large");
        let mut connect = Connect::new(&client_id).without_keep_alive();
        connect.protocol_level = protocol_level;
        let client = RawClient::connect(&connector.mqtt_address, &connect).await;
        clients.push((client_id, client));
    }
    clients
}

/// Returns a response of about one megabyte. The recorder accepts a response of this size.
fn large_response() -> Vec<u8> {
    json!({"type": "data", "message_id": "r1", "response_to": "m1", "version": 1,
        "sent": "2020-01-01T00:00:00Z", "directive": "echo", "metadata": {},
        "content": "x".repeat(1_000_000)})
    .to_string()
    .into_bytes()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_messages_use_bounded_memory_while_the_database_is_locked() {
    let connector = Connector::start().await;
    let before = resident_memory_mib(connector.pid());
    let mut clients = connect_clients(&connector, 200, 4).await;
    clients.extend(connect_clients(&connector, 200, 5).await);
    let blocker = connector.block_writes().await;
    let payload: std::sync::Arc<[u8]> = large_response().into();
    let tasks: Vec<JoinHandle<_>> = clients
        .into_iter()
        .map(|(client_id, mut client)| {
            let payload = payload.clone();
            tokio::spawn(async move {
                let puback = client.publish(&data_out_topic(&client_id), &payload).await;
                (client, puback.is_some())
            })
        })
        .collect();
    let (peak, ()) = peak_memory_during(&connector, Duration::from_secs(5), async {}).await;
    blocker.close().await.unwrap();
    let mut clients = Vec::new();
    for task in tasks {
        let (client, is_acknowledged) = task.await.unwrap();
        assert!(is_acknowledged, "the broker closed the connection");
        clients.push(client);
    }
    eprintln!("resident memory: {before} MiB before the attack, at most {peak} MiB");
    assert!(
        peak < before + 220,
        "resident memory: {before} MiB before the attack, {peak} MiB during the attack"
    );
    // The clients are still connected. Their connections do not keep the memory of their messages.
    let mut after = resident_memory_mib(connector.pid());
    let end = Instant::now() + CONDITION_TIMEOUT;
    while after >= 150 && Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(50)).await;
        after = resident_memory_mib(connector.pid());
    }
    eprintln!("resident memory after the attack: {after} MiB");
    assert!(
        after < 150,
        "resident memory: {before} MiB before the attack, {after} MiB after the attack"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unfinished_publish_packets_use_bounded_memory_and_do_not_block_other_clients() {
    let connector = Connector::start().await;
    let before = resident_memory_mib(connector.pid());
    let mut clients = connect_clients(&connector, 300, 4).await;
    for (client_id, client) in &mut clients {
        let topic = data_out_topic(client_id);
        let mut packet = fixed_header(PUBLISH_QOS_1, UNFINISHED_PACKET_BYTES - 5);
        packet.extend(u16::try_from(topic.len()).unwrap().to_be_bytes());
        packet.extend(topic.as_bytes());
        packet.extend([0, 1]);
        // One byte is missing.
        packet.resize(UNFINISHED_PACKET_BYTES - 2, b'x');
        // If the broker does not read, the write does not complete.
        let _ = timeout(Duration::from_millis(20), client.write(&packet)).await;
    }
    let good_id = unique_id("good");
    let mut good_client =
        RawClient::connect(&connector.mqtt_address, &Connect::new(&good_id)).await;
    let publish = async {
        good_client
            .must_publish(&control_out_topic(&good_id), &online_message())
            .await;
        let puback = good_client
            .publish(&data_out_topic(&good_id), &large_response())
            .await;
        assert!(puback.is_some(), "the broker closed the connection");
    };
    let (peak, published) = peak_memory_during(
        &connector,
        Duration::ZERO,
        timeout(Duration::from_secs(15), publish),
    )
    .await;
    eprintln!("resident memory: {before} MiB before the attack, at most {peak} MiB");
    assert!(
        peak < before + 150,
        "resident memory: {before} MiB before the attack, {peak} MiB during the attack"
    );
    published.expect("the good client could not publish during the attack");
}
