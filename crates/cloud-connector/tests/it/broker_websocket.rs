//! MQTT over WebSocket with the embedded broker.

use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use test_support::connector::DEFAULT_ORG_ID;
use test_support::mqtt::{
    Connect, control_out_topic, data_in_topic, data_out_topic, online_message,
};
use test_support::websocket::{frame, handshake_request, read_frame, read_response_head};
use test_support::{CONDITION_TIMEOUT, Certs, Connector, RawClient, eventually, unique_id};

const MQTT_SUBPROTOCOL: &str = "Sec-WebSocket-Protocol: mqtt\r\n";
const NOT_AUTHORIZED_V311: u8 = 5;
// Opcodes and flags of WebSocket frames.
const FINAL: u8 = 0x80;
const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

/// Publishes an online message, receives a message, and publishes a large response.
async fn exchange_messages(connector: &Connector, client: &mut RawClient, client_id: &str) {
    assert_eq!(client.subscribe(&data_in_topic(client_id)).await, 1);
    client
        .must_publish(&control_out_topic(client_id), &online_message())
        .await;
    let content = "content ".repeat(50_000);
    let (status, sent) = connector
        .send_message(client_id, json!({"directive": "echo", "payload": content}))
        .await;
    assert_eq!(status, 201);
    let (_, message) = client.next_message().await;
    assert_eq!(message["message_id"], sent["id"]);
    assert_eq!(message["content"], content);
    let response = json!({"type": "data", "message_id": "r", "response_to": sent["id"],
        "version": 1, "sent": "2020-01-01T00:00:00Z", "directive": "echo", "content": content});
    client
        .must_publish(&data_out_topic(client_id), &response)
        .await;
    assert!(
        connector
            .list_client_ids(DEFAULT_ORG_ID)
            .await
            .contains(&client_id.to_owned())
    );
}

#[tokio::test]
async fn websocket_clients_are_served_on_the_mqtt_listener_and_on_their_own_listener() {
    let connector = Connector::builder()
        .set("broker.websocket.listen", "127.0.0.1:0")
        .start()
        .await;
    let ws_address = connector.ws_address.clone().unwrap();
    for address in [&connector.mqtt_address, &ws_address] {
        for protocol_level in [3, 4, 5] {
            let client_id = unique_id("ws");
            let mut connect = Connect::new(&client_id).offline_will();
            connect.protocol_level = protocol_level;
            let mut client = RawClient::connect_websocket(address).await;
            assert_eq!(client.send_connect(&connect).await, 0);
            exchange_messages(&connector, &mut client, &client_id).await;
            // The broker publishes the last will.
            drop(client);
            connector.wait_until_disconnected(&client_id).await;
        }
        // The WebSocket listener also accepts MQTT without WebSocket.
        let client_id = unique_id("tcp");
        let mut client = RawClient::connect(address, &Connect::new(&client_id)).await;
        client
            .must_publish(&control_out_topic(&client_id), &online_message())
            .await;
    }
}

#[tokio::test]
async fn wss_clients_authenticate_with_their_certificate() {
    let (certs, builder) = Certs::connector_builder().await;
    let connector = builder
        .set("broker.tls.websocket_listen", "127.0.0.1:0")
        .start()
        .await;
    let (client_id, other_id) = (unique_id("wss"), unique_id("other"));
    certs.issue_client_certificate(&client_id).await;
    let wss_address = connector.wss_address.clone().unwrap();
    for address in [connector.mqtts_address.clone().unwrap(), wss_address] {
        let connect = async || {
            let config = certs.client_tls_config(Some(&client_id));
            let client = RawClient::connect_tls_websocket(&address, config).await;
            client.unwrap()
        };
        let mut client = connect().await;
        let code = client.send_connect(&Connect::new(&other_id)).await;
        assert_eq!(code, NOT_AUTHORIZED_V311);
        let mut client = connect().await;
        assert_eq!(client.send_connect(&Connect::new(&client_id)).await, 0);
        exchange_messages(&connector, &mut client, &client_id).await;
        client.disconnect().await;
        let config = certs.client_tls_config(None);
        assert!(
            RawClient::connect_tls_websocket(&address, config)
                .await
                .is_err(),
            "a client without a certificate was accepted"
        );
    }
}

/// Sends an HTTP request. Returns the complete response.
async fn http_response(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut response = String::new();
    timeout(CONDITION_TIMEOUT, stream.read_to_string(&mut response))
        .await
        .expect("the broker did not close the connection")
        .unwrap();
    response
}

#[tokio::test]
async fn invalid_requests_get_an_http_error() {
    let connector = Connector::builder()
        .set("broker.websocket.path", "/mqtt")
        .start()
        .await;
    let address = &connector.mqtt_address;
    let valid = handshake_request(MQTT_SUBPROTOCOL);
    let foreign_origin = format!("{MQTT_SUBPROTOCOL}Origin: https://page.example\r\n");
    let long_header = format!("x-long: {}\r\n", "x".repeat(20_000));
    for (request, status, text) in [
        (handshake_request(""), "400", "Sec-WebSocket-Protocol"),
        (
            handshake_request("Sec-WebSocket-Protocol: wamp\r\n"),
            "400",
            "must contain mqtt",
        ),
        (
            "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_owned(),
            "426",
            "not a WebSocket request",
        ),
        (
            valid.replace("Version: 13", "Version: 7"),
            "426",
            "not a WebSocket request",
        ),
        (valid.replace("/mqtt", "/other"), "404", "websocket.path"),
        (handshake_request(&foreign_origin), "403", "Origin"),
        ("GET / HTTP/1.0\r\n\r\n".to_owned(), "400", "HTTP"),
        (handshake_request(&long_header), "431", "8192 bytes"),
    ] {
        let response = http_response(address, &request).await;
        assert!(
            response.starts_with(&format!("HTTP/1.1 {status} ")),
            "{request}\n{response}"
        );
        assert!(response.contains(text), "{request}\n{response}");
    }
    // The broker counts a rejection after it has sent the response.
    let rejections = eventually("the number of rejections", || async {
        let metric = "cloud_connector_broker_rejections_total";
        let label = "websocket_handshake_failed";
        let rejections = connector.read_metric(metric, label).await;
        (rejections > 7.5).then_some(rejections)
    })
    .await;
    assert!((rejections - 8.0).abs() < 0.1, "{rejections}");
}

/// Opens a WebSocket connection without sending CONNECT.
async fn open_websocket(connector: &Connector) -> TcpStream {
    let mut stream = TcpStream::connect(&connector.mqtt_address).await.unwrap();
    let request = handshake_request(MQTT_SUBPROTOCOL);
    stream.write_all(request.as_bytes()).await.unwrap();
    let response = read_response_head(&mut stream).await.unwrap();
    assert!(response.starts_with("HTTP/1.1 101 "), "{response}");
    stream
}

/// Returns a CONNECT packet of MQTT 3.1.1 with a keep-alive interval of 30 seconds.
fn connect_packet(client_id: &str) -> Vec<u8> {
    let id_len = u8::try_from(client_id.len()).unwrap();
    let mut packet = vec![0x10, 12 + id_len];
    packet.extend(b"\x00\x04MQTT\x04\x02\x00\x1e\x00");
    packet.push(id_len);
    packet.extend(client_id.as_bytes());
    packet
}

const CONNACK_PACKET: &[u8] = &[0x20, 2, 0, 0];

#[tokio::test]
async fn fragments_pings_and_close_frames_are_handled() {
    let connector = Connector::start().await;
    let mut stream = open_websocket(&connector).await;
    let packet = connect_packet("ws");
    let (first, second) = packet.split_at(5);
    let bytes = [
        frame(BINARY, first),
        frame(FINAL | PING, b"ping"),
        frame(FINAL, second),
    ]
    .concat();
    // The frames arrive in small parts.
    for part in bytes.chunks(3) {
        stream.write_all(part).await.unwrap();
        stream.flush().await.unwrap();
    }
    let mut frames = vec![
        read_frame(&mut stream).await.unwrap(),
        read_frame(&mut stream).await.unwrap(),
    ];
    frames.sort();
    assert_eq!(
        frames,
        [(BINARY, CONNACK_PACKET.to_vec()), (PONG, b"ping".to_vec())]
    );
    // Two packets in one frame: PINGREQ twice.
    let two_packets = frame(FINAL | BINARY, &[0xc0, 0, 0xc0, 0]);
    stream.write_all(&two_packets).await.unwrap();
    for _ in 0..2 {
        let pingresp = (BINARY, vec![0xd0, 0]);
        assert_eq!(read_frame(&mut stream).await.unwrap(), pingresp);
    }
    let close = frame(FINAL | CLOSE, &1000_u16.to_be_bytes());
    stream.write_all(&close).await.unwrap();
    let (opcode, payload) = read_frame(&mut stream).await.unwrap();
    assert_eq!(
        (opcode, &payload[..2]),
        (CLOSE, &1000_u16.to_be_bytes()[..])
    );
    assert!(read_frame(&mut stream).await.is_err());
}

#[tokio::test]
async fn text_frames_close_the_connection_with_code_1003() {
    let connector = Connector::start().await;
    for sends_connect in [false, true] {
        let mut stream = open_websocket(&connector).await;
        if sends_connect {
            let connect = frame(FINAL | BINARY, &connect_packet("ws"));
            stream.write_all(&connect).await.unwrap();
            let connack = (BINARY, CONNACK_PACKET.to_vec());
            assert_eq!(read_frame(&mut stream).await.unwrap(), connack);
        }
        let text = frame(FINAL | TEXT, b"text");
        stream.write_all(&text).await.unwrap();
        let (opcode, payload) = read_frame(&mut stream).await.unwrap();
        assert_eq!((opcode, payload), (CLOSE, 1003_u16.to_be_bytes().to_vec()));
        assert!(read_frame(&mut stream).await.is_err());
    }
}

#[tokio::test]
async fn limits_apply_to_websocket_connections() {
    let connector = Connector::builder()
        .set("broker.max_connections", 2)
        .set("client_budget.message_burst", 5)
        .set("client_budget.messages_per_second", 10)
        .start()
        .await;
    let client_id = unique_id("ws");
    let mut client = RawClient::connect_websocket(&connector.mqtt_address).await;
    assert_eq!(client.send_connect(&Connect::new(&client_id)).await, 0);
    for _ in 0..30 {
        client
            .publish_qos0(&data_out_topic(&client_id), b"garbage")
            .await;
    }
    client
        .must_publish(&control_out_topic(&client_id), &online_message())
        .await;
    let metric = "cloud_connector_client_budget_exceeded_total";
    assert!(connector.read_metric(metric, "dropped").await > 10.0);
    let _second = open_websocket(&connector).await;
    let mut third = TcpStream::connect(&connector.mqtt_address).await.unwrap();
    let request = handshake_request(MQTT_SUBPROTOCOL);
    let _ = third.write_all(request.as_bytes()).await;
    assert!(read_response_head(&mut third).await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_frames_that_are_not_complete_need_little_memory() {
    const MIB: usize = 1024 * 1024;
    let connector = Connector::start().await;
    let before = test_support::resident_memory_mib(connector.pid());
    let mut streams = Vec::new();
    for n in 0..200 {
        let mut stream = open_websocket(&connector).await;
        let connect = frame(FINAL | BINARY, &connect_packet(&format!("client-{n}")));
        stream.write_all(&connect).await.unwrap();
        // A PUBLISH packet of 2 MiB in one frame. Only the first part of the frame is sent.
        let mut publish = vec![0x32, 0x80, 0x80, 0x80, 0x01, 0, 1, b't'];
        publish.resize(2 * MIB, b'x');
        let frame = frame(FINAL | BINARY, &publish);
        let part = &frame[..MIB];
        // If the broker does not read, the write does not complete.
        let write = stream.write_all(part);
        let _ = timeout(std::time::Duration::from_millis(20), write).await;
        streams.push(stream);
    }
    let peak = test_support::resident_memory_mib(connector.pid());
    eprintln!("resident memory: {before} MiB before, {peak} MiB");
    assert!(peak < before + 120, "{before} MiB before, {peak} MiB");
}
