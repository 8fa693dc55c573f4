//! Tests of disconnects and rejections with a running broker and MQTT clients.

use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use crate::packet_format::encode_packet;
use crate::router_shards::tests::{RunningBroker, read_packet, string};
use crate::session::tests::TestSink;
use domain::{ClientId, OfflineReason};

const CONNECT: u8 = 0x10;
const CONNACK: u8 = 0x20;
const PUBLISH_QOS_1: u8 = 0x32;
const PUBACK: u8 = 0x40;
const MQTT_3_1_1: u8 = 4;
const MQTT_5: u8 = 5;
const OFFLINE: &str = r#"{"type":"connection-status","content":{"state":"offline"}}"#;

/// How a connection ends.
enum End {
    /// The client sends these bytes.
    Bytes(&'static [u8]),
    /// The client closes the socket.
    ClosedSocket,
    /// The client sends nothing.
    KeepAliveTimeout,
}

/// Connects a client with an offline message as last will, and with a keep-alive time of one second.
async fn connect(running: &RunningBroker, id: &ClientId, version: u8) -> TcpStream {
    let mut stream = TcpStream::connect(running.address).await.unwrap();
    let clean_session_with_will = 0b0000_1110;
    // MQTT 5 has empty properties, whose length is 0.
    let properties: &[u8] = if version == MQTT_5 { &[0] } else { &[] };
    let body = [
        b"\0\x04MQTT",
        &[version, clean_session_with_will][..],
        &[0, 1],
        properties,
        &string(id.as_str()),
        properties,
        &string(&format!("p/{id}/control/out")),
        &string(OFFLINE),
    ]
    .concat();
    stream
        .write_all(&encode_packet(CONNECT, &body))
        .await
        .unwrap();
    let connack = read_packet(&mut stream, CONNACK).await;
    assert_eq!(connack[1], 0, "the broker rejected {id}");
    stream
}

/// Publishes an offline message, and waits for the PUBACK.
async fn publish_offline(stream: &mut TcpStream, id: &ClientId, version: u8) {
    let properties: &[u8] = if version == MQTT_5 { &[0] } else { &[] };
    let topic = string(&format!("p/{id}/control/out"));
    let body = [&topic[..], &[0, 1], properties, OFFLINE.as_bytes()].concat();
    let packet = encode_packet(PUBLISH_QOS_1, &body);
    stream.write_all(&packet).await.unwrap();
    read_packet(stream, PUBACK).await;
}

#[tokio::test]
async fn disconnect_reason_and_last_will_depend_on_how_the_connection_ended() {
    let (client, will) = (OfflineReason::Client, OfflineReason::Will);
    for (version, end, expected) in [
        (MQTT_3_1_1, End::Bytes(&[0xe0, 0]), client),
        (MQTT_3_1_1, End::ClosedSocket, will),
        (MQTT_3_1_1, End::KeepAliveTimeout, will),
        // A reserved packet type.
        (MQTT_3_1_1, End::Bytes(&[0x00, 0]), will),
        (MQTT_5, End::Bytes(&[0xe0, 0]), client),
        (MQTT_5, End::Bytes(&[0xe0, 1, 0]), client),
        // Disconnect with will message.
        (MQTT_5, End::Bytes(&[0xe0, 1, 4]), will),
        (MQTT_5, End::ClosedSocket, will),
    ] {
        let sink = TestSink::default();
        let (last_wills, disconnects) = (sink.last_wills.clone(), sink.disconnects.clone());
        let running = RunningBroker::start_with_sink(sink).await;
        let id = ClientId::new("a").unwrap();
        let mut stream = connect(&running, &id, version).await;
        publish_offline(&mut stream, &id, version).await;
        let open_stream = match end {
            End::Bytes(bytes) => {
                stream.write_all(bytes).await.unwrap();
                Some(stream)
            }
            End::ClosedSocket => {
                drop(stream);
                None
            }
            End::KeepAliveTimeout => Some(stream),
        };
        running.wait_until_disconnected(&id).await;
        assert_eq!(*disconnects.lock(), [expected]);
        let expected_last_wills: &[bool] = match expected {
            OfflineReason::Will => &[false, true],
            _ => &[false],
        };
        assert_eq!(*last_wills.lock(), expected_last_wills);
        drop(open_stream);
        running.tasks.cancel();
    }
}

#[tokio::test]
async fn rejected_connect_is_among_the_recent_rejections_of_its_client_id() {
    let running = RunningBroker::start_with_sink(TestSink::default()).await;
    let id = "a+b";
    let mut stream = TcpStream::connect(running.address).await.unwrap();
    let clean_session = 0b0000_0010;
    let body = [
        b"\0\x04MQTT",
        &[MQTT_3_1_1, clean_session, 0, 1][..],
        &string(id),
    ]
    .concat();
    let packet = encode_packet(CONNECT, &body);
    stream.write_all(&packet).await.unwrap();
    let connack = read_packet(&mut stream, CONNACK).await;
    assert_ne!(connack[1], 0, "the broker accepted {id}");
    let rejections = running.broker.recent_rejections(id);
    assert_eq!(rejections.len(), 1);
    assert_eq!(rejections[0].reason, "invalid_client_id");
    let peer = stream.local_addr().unwrap().to_string();
    assert_eq!(rejections[0].peer, peer);
    assert_eq!(running.broker.recent_rejections("a"), []);
    running.tasks.cancel();
}
