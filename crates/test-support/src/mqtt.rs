//! A minimal MQTT client. Tests control every byte that the client sends, and can read every packet
//! that the client receives. The client sends no keep-alive pings and does not reconnect.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use uuid::Uuid;

use super::{CONDITION_TIMEOUT, websocket};

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// A received packet without its length field.
#[derive(Debug, Clone, PartialEq)]
pub struct Packet {
    /// First byte of the packet. The upper four bits are the packet type, the lower four bits are
    /// flags.
    pub first_byte: u8,
    pub body: Vec<u8>,
}

impl Packet {
    /// Returns the packet type, for example [`PUBACK`].
    pub fn packet_type(&self) -> u8 {
        self.first_byte >> 4
    }
}

// Packet types.
pub const CONNACK: u8 = 2;
pub const PUBLISH: u8 = 3;
pub const PUBACK: u8 = 4;
const PUBREC: u8 = 5;
const PUBCOMP: u8 = 7;
const SUBACK: u8 = 9;
pub const PINGRESP: u8 = 13;

// First byte of each kind of packet. The byte contains the packet type and the flags.
const FIRST_BYTE_PUBLISH_QOS0: u8 = 0x30;
const FIRST_BYTE_PUBLISH_QOS1: u8 = 0x32;
const FIRST_BYTE_PUBLISH_QOS2: u8 = 0x34;
const FIRST_BYTE_CONNECT: u8 = 0x10;
const FIRST_BYTE_PUBACK: u8 = 0x40;
const FIRST_BYTE_PUBREL: u8 = 0x62;
const FIRST_BYTE_SUBSCRIBE: u8 = 0x82;

/// The functions of [`RawClient`] return this value instead of a reason code if the broker closed
/// the connection without sending a reason code.
pub const CLOSED_WITHOUT_REASON: u8 = 255;

/// Contents of a CONNECT packet.
#[derive(Clone)]
pub struct Connect {
    pub client_id: String,
    /// Topic and payload of the last will.
    pub will: Option<(String, Vec<u8>)>,
    /// Protocol level of the MQTT version: 3 for MQTT 3.1, 4 for MQTT 3.1.1, 5 for MQTT 5.
    pub protocol_level: u8,
    /// Session expiry interval in seconds. MQTT 5 only.
    pub session_expiry_seconds: u32,
    /// Will delay interval in seconds. MQTT 5 only.
    pub will_delay_seconds: u32,
    pub will_retain: bool,
    /// User name and password of the client.
    pub credentials: Option<(String, String)>,
    /// Keep-alive interval in seconds. 0 disables the keep-alive.
    pub keep_alive_seconds: u16,
}

impl Connect {
    pub fn new(client_id: &str) -> Self {
        Self {
            client_id: client_id.to_owned(),
            will: None,
            protocol_level: 4,
            session_expiry_seconds: 0,
            will_delay_seconds: 0,
            will_retain: false,
            credentials: None,
            keep_alive_seconds: 30,
        }
    }

    pub fn with_mqtt_5(mut self) -> Self {
        self.protocol_level = 5;
        self
    }

    pub fn will(mut self, topic: &str, payload: &[u8]) -> Self {
        self.will = Some((topic.to_owned(), payload.to_vec()));
        self
    }

    /// Disables the keep-alive, so the broker does not close an idle connection.
    pub fn without_keep_alive(mut self) -> Self {
        self.keep_alive_seconds = 0;
        self
    }

    pub fn credentials(mut self, user_name: &str, password: &str) -> Self {
        self.credentials = Some((user_name.to_owned(), password.to_owned()));
        self
    }

    /// Sets a retained last will, as clients of the handshake dialect do.
    pub fn retained_will(mut self, topic: &str, payload: &[u8]) -> Self {
        self.will_retain = true;
        self.will(topic, payload)
    }

    /// Sets an offline message as last will, as clients of the status dialect do.
    pub fn offline_will(self) -> Self {
        let topic = control_out_topic(&self.client_id);
        self.will(&topic, offline_message().to_string().as_bytes())
    }

    /// Returns the CONNECT packet.
    pub fn encode(&self) -> Vec<u8> {
        const CLEAN_SESSION_FLAG: u8 = 0x02;
        const WILL_QOS_1_FLAGS: u8 = 0x04 | 0x08;
        const WILL_RETAIN_FLAG: u8 = 0x20;
        const USER_NAME_AND_PASSWORD_FLAGS: u8 = 0xc0;
        // Length of the property list, and id of the only property in the list.
        const SESSION_EXPIRY_PROPERTY_HEADER: [u8; 2] = [5, 0x11];
        const WILL_DELAY_PROPERTY_HEADER: [u8; 2] = [5, 0x18];
        let protocol_name = if self.protocol_level == 3 {
            "MQIsdp"
        } else {
            "MQTT"
        };
        let mut body = encode_string(protocol_name);
        body.push(self.protocol_level);
        let mut flags = CLEAN_SESSION_FLAG;
        if self.will.is_some() {
            flags |= WILL_QOS_1_FLAGS;
        }
        if self.will_retain {
            flags |= WILL_RETAIN_FLAG;
        }
        if self.credentials.is_some() {
            flags |= USER_NAME_AND_PASSWORD_FLAGS;
        }
        body.push(flags);
        body.extend(self.keep_alive_seconds.to_be_bytes());
        if self.protocol_level == 5 {
            body.extend(SESSION_EXPIRY_PROPERTY_HEADER);
            body.extend(self.session_expiry_seconds.to_be_bytes());
        }
        body.extend(encode_string(&self.client_id));
        if let Some((topic, payload)) = &self.will {
            if self.protocol_level == 5 {
                body.extend(WILL_DELAY_PROPERTY_HEADER);
                body.extend(self.will_delay_seconds.to_be_bytes());
            }
            body.extend(encode_string(topic));
            body.extend(u16::try_from(payload.len()).unwrap().to_be_bytes());
            body.extend(payload);
        }
        if let Some((user_name, password)) = &self.credentials {
            body.extend(encode_string(user_name));
            body.extend(encode_string(password));
        }
        encode_packet(FIRST_BYTE_CONNECT, &body)
    }
}

/// A minimal MQTT client that gives tests access to single packets.
pub struct RawClient {
    stream: Box<dyn Stream>,
    protocol_level: u8,
    next_packet_id: u16,
}

impl RawClient {
    /// Opens a TCP connection without sending CONNECT.
    pub async fn connect_tcp(address: &str) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        Self::from_stream(Box::new(stream))
    }

    /// Opens a TLS connection without sending CONNECT.
    pub async fn connect_tls(
        address: &str,
        config: Arc<rustls::ClientConfig>,
    ) -> std::io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        let server_name = "localhost".try_into().unwrap();
        let stream = TlsConnector::from(config)
            .connect(server_name, stream)
            .await?;
        Ok(Self::from_stream(Box::new(stream)))
    }

    /// Opens a WebSocket connection without TLS, and does not send CONNECT.
    pub async fn connect_websocket(address: &str) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        let stream = websocket::connect(stream).await.unwrap();
        Self::from_stream(Box::new(stream))
    }

    /// Opens a WebSocket connection with TLS, and does not send CONNECT.
    pub async fn connect_tls_websocket(
        address: &str,
        config: Arc<rustls::ClientConfig>,
    ) -> std::io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        let server_name = "localhost".try_into().unwrap();
        let stream = TlsConnector::from(config)
            .connect(server_name, stream)
            .await?;
        let stream = websocket::connect(stream).await?;
        Ok(Self::from_stream(Box::new(stream)))
    }

    pub fn from_tcp_stream(stream: TcpStream) -> Self {
        Self::from_stream(Box::new(stream))
    }

    fn from_stream(stream: Box<dyn Stream>) -> Self {
        Self {
            stream,
            protocol_level: 4,
            next_packet_id: 1,
        }
    }

    /// Opens a TCP connection, sends CONNECT and requires that the broker accepts the
    /// connection.
    pub async fn connect(address: &str, connect: &Connect) -> Self {
        let mut client = Self::connect_tcp(address).await;
        assert_eq!(
            client.send_connect(connect).await,
            0,
            "{}",
            connect.client_id
        );
        client
    }

    /// Sends CONNECT. Returns the reason code of the CONNACK, or [`CLOSED_WITHOUT_REASON`].
    pub async fn send_connect(&mut self, connect: &Connect) -> u8 {
        self.send_connect_packet(&connect.encode(), connect.protocol_level)
            .await
    }

    /// Sends a CONNECT packet. Returns the reason code of the CONNACK, or
    /// [`CLOSED_WITHOUT_REASON`].
    pub async fn send_connect_packet(&mut self, packet: &[u8], protocol_level: u8) -> u8 {
        self.protocol_level = protocol_level;
        self.write(packet).await;
        match self.read_packet().await {
            Some(packet) if packet.packet_type() == CONNACK => packet.body[1],
            other => {
                assert_eq!(other, None, "expected a CONNACK");
                CLOSED_WITHOUT_REASON
            }
        }
    }

    /// Sends `bytes` and ignores errors. If the broker closed the connection, the next read
    /// returns `None`.
    pub async fn write(&mut self, bytes: &[u8]) {
        let _ = self.try_write(bytes).await;
    }

    /// Sends `bytes`. Fails if the broker closed the connection.
    pub async fn try_write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.stream.write_all(bytes).await?;
        self.stream.flush().await
    }

    fn allocate_packet_id(&mut self) -> u16 {
        let packet_id = self.next_packet_id;
        self.next_packet_id += 1;
        packet_id
    }

    /// Returns the body of a PUBLISH packet with QoS 1 or 2.
    fn publish_body(&self, topic: &str, packet_id: u16, payload: &[u8]) -> Vec<u8> {
        let mut body = encode_string(topic);
        body.extend(packet_id.to_be_bytes());
        self.push_empty_properties(&mut body);
        body.extend(payload);
        body
    }

    /// Appends an empty property list if the connection uses MQTT 5. MQTT 3.1.1 has no property
    /// lists.
    fn push_empty_properties(&self, body: &mut Vec<u8>) {
        if self.protocol_level == 5 {
            body.push(0);
        }
    }

    /// Sends a PUBLISH packet with QoS 1 and does not wait for the PUBACK. Returns the packet id.
    pub async fn send_publish(&mut self, topic: &str, payload: &[u8], retain: bool) -> u16 {
        let packet_id = self.allocate_packet_id();
        let body = self.publish_body(topic, packet_id, payload);
        self.write(&encode_packet(
            FIRST_BYTE_PUBLISH_QOS1 | u8::from(retain),
            &body,
        ))
        .await;
        packet_id
    }

    /// Publishes with QoS 2, and waits for the PUBREC packet and the PUBCOMP packet.
    pub async fn publish_qos2(&mut self, topic: &str, payload: &[u8], retain: bool) {
        let packet_id = self.allocate_packet_id();
        let body = self.publish_body(topic, packet_id, payload);
        self.write(&encode_packet(
            FIRST_BYTE_PUBLISH_QOS2 | u8::from(retain),
            &body,
        ))
        .await;
        assert_eq!(self.must_read_packet().await.packet_type(), PUBREC);
        self.write(&encode_packet(FIRST_BYTE_PUBREL, &packet_id.to_be_bytes()))
            .await;
        assert_eq!(self.must_read_packet().await.packet_type(), PUBCOMP);
    }

    /// Publishes with QoS 1. Returns the PUBACK, or `None` if the broker closed the connection.
    pub async fn publish(&mut self, topic: &str, payload: &[u8]) -> Option<Packet> {
        self.publish_with_retain(topic, payload, false).await
    }

    /// Publishes a retained message with QoS 1, and requires a PUBACK.
    pub async fn publish_retained(&mut self, topic: &str, payload: &[u8]) {
        let puback = self.publish_with_retain(topic, payload, true).await;
        puback.expect("the broker closed the connection");
    }

    /// Publishes an empty payload with QoS 0, as real clients do after every connect. The connector
    /// treats the message as a heartbeat.
    pub async fn publish_heartbeat(&mut self, topic: &str) {
        self.publish_qos0(topic, b"").await;
    }

    /// Publishes with QoS 0, without a packet id and without an acknowledgement.
    pub async fn publish_qos0(&mut self, topic: &str, payload: &[u8]) {
        let mut body = encode_string(topic);
        self.push_empty_properties(&mut body);
        body.extend(payload);
        self.write(&encode_packet(FIRST_BYTE_PUBLISH_QOS0, &body))
            .await;
    }

    async fn publish_with_retain(
        &mut self,
        topic: &str,
        payload: &[u8],
        retain: bool,
    ) -> Option<Packet> {
        let packet_id = self.send_publish(topic, payload, retain).await;
        loop {
            let packet = self.read_packet().await?;
            if packet.packet_type() == PUBACK {
                assert_eq!(packet.body[..2], packet_id.to_be_bytes());
                return Some(packet);
            }
        }
    }

    /// Publishes with QoS 1, and requires a PUBACK that reports success.
    pub async fn must_publish(&mut self, topic: &str, payload: &Value) {
        let puback = self.publish(topic, payload.to_string().as_bytes()).await;
        let puback = puback.expect("the broker closed the connection");
        assert!(
            puback.body.get(2).is_none_or(|code| *code == 0),
            "{puback:?}"
        );
    }

    /// Sends a PINGREQ packet and does not wait for the PINGRESP.
    pub async fn send_pingreq(&mut self) {
        self.write(&[0xc0, 0]).await;
    }

    /// Publishes with QoS 1. Then waits until the broker has acknowledged this message and
    /// `in_flight_count` earlier messages.
    pub async fn must_publish_with_messages_in_flight(
        &mut self,
        topic: &str,
        payload: &Value,
        in_flight_count: usize,
    ) {
        let bytes = payload.to_string();
        self.send_publish(topic, bytes.as_bytes(), false).await;
        let mut acknowledged_count = 0;
        while acknowledged_count <= in_flight_count {
            let packet = self.must_read_packet().await;
            acknowledged_count += usize::from(packet.packet_type() == PUBACK);
        }
    }

    /// Subscribes with QoS 1. Returns the reason code of the SUBACK, or [`CLOSED_WITHOUT_REASON`].
    pub async fn subscribe(&mut self, filter: &str) -> u8 {
        let mut body = self.allocate_packet_id().to_be_bytes().to_vec();
        self.push_empty_properties(&mut body);
        body.extend(encode_string(filter));
        body.push(1);
        self.write(&encode_packet(FIRST_BYTE_SUBSCRIBE, &body))
            .await;
        loop {
            match self.read_packet().await {
                Some(packet) if packet.packet_type() == SUBACK => {
                    return *packet.body.last().unwrap();
                }
                Some(_) => {}
                None => return CLOSED_WITHOUT_REASON,
            }
        }
    }

    /// Waits for the next PUBLISH packet and acknowledges it. Returns the topic and the JSON
    /// payload of the message.
    pub async fn next_message(&mut self) -> (String, Value) {
        loop {
            let packet = self.must_read_packet().await;
            if packet.packet_type() != PUBLISH {
                continue;
            }
            let topic_length = u16::from_be_bytes([packet.body[0], packet.body[1]]);
            let (topic, mut rest) = packet.body[2..].split_at(usize::from(topic_length));
            let topic = String::from_utf8(topic.to_vec()).unwrap();
            let has_packet_id = packet.first_byte & 0x06 != 0;
            if has_packet_id {
                let packet_id = [rest[0], rest[1]];
                rest = &rest[2..];
                self.write(&encode_packet(FIRST_BYTE_PUBACK, &packet_id))
                    .await;
            }
            if self.protocol_level == 5 {
                let properties_length = usize::from(rest[0]);
                rest = &rest[1 + properties_length..];
            }
            return (topic, serde_json::from_slice(rest).unwrap());
        }
    }

    /// Sends DISCONNECT, and waits until the broker has closed the connection.
    pub async fn disconnect(mut self) {
        self.write(&[0xe0, 0]).await;
        self.wait_for_close().await;
    }

    /// Discards packets until the broker closes the connection.
    pub async fn wait_for_close(&mut self) {
        while self.read_packet().await.is_some() {}
    }

    /// Waits for the next packet. Returns `None` if the broker closed the connection.
    pub async fn read_packet(&mut self) -> Option<Packet> {
        timeout(CONDITION_TIMEOUT, self.read_packet_without_timeout())
            .await
            .expect("timed out waiting for a packet")
            .ok()
    }

    async fn must_read_packet(&mut self) -> Packet {
        let packet = self.read_packet().await;
        packet.expect("the broker closed the connection")
    }

    async fn read_packet_without_timeout(&mut self) -> std::io::Result<Packet> {
        let first_byte = self.stream.read_u8().await?;
        let mut length = 0;
        for shift in [0, 7, 14, 21] {
            let byte = self.stream.read_u8().await?;
            length |= usize::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).await?;
        Ok(Packet { first_byte, body })
    }
}

/// Encodes a string in the MQTT format: a length of two bytes, followed by UTF-8.
/// Encodes a PUBLISH packet of MQTT 3.1.1 with QoS 0 or 1. The packet identifier is 1.
pub fn encode_publish(topic: &str, qos: u8, payload: &[u8]) -> Vec<u8> {
    let mut body = encode_string(topic);
    if qos > 0 {
        body.extend([0, 1]);
    }
    body.extend(payload);
    encode_packet(FIRST_BYTE_PUBLISH_QOS0 | (qos << 1), &body)
}

fn encode_string(string: &str) -> Vec<u8> {
    let mut bytes = u16::try_from(string.len()).unwrap().to_be_bytes().to_vec();
    bytes.extend(string.as_bytes());
    bytes
}

fn encode_packet(first_byte: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![first_byte];
    let mut length = body.len();
    loop {
        let byte = u8::try_from(length & 0x7f).unwrap();
        length >>= 7;
        bytes.push(if length > 0 { byte | 0x80 } else { byte });
        if length == 0 {
            break;
        }
    }
    bytes.extend(body);
    bytes
}

pub fn control_out_topic(client_id: &str) -> String {
    format!("redhat/insights/{client_id}/control/out")
}

pub fn data_out_topic(client_id: &str) -> String {
    format!("redhat/insights/{client_id}/data/out")
}

pub fn data_in_topic(client_id: &str) -> String {
    format!("redhat/insights/{client_id}/data/in")
}

/// Returns an online message of the status dialect, with a random message id.
pub fn online_message() -> Value {
    json!({
        "type": "connection-status", "message_id": Uuid::new_v4(), "response_to": "", "version": 1,
        "sent": jiff::Timestamp::now().to_string(),
        "content": {"state": "online", "canonical_facts": {"fqdn": "raw.example"},
            "dispatchers": {"echo": {}}, "tags": {"make": "raw"}},
    })
}

/// Returns an offline message of the status dialect. Clients create this message once, when they
/// start, and send it with every CONNECT as their last will. Therefore the `sent` time of this
/// message is in the past.
pub fn offline_message() -> Value {
    json!({
        "type": "connection-status", "message_id": "the-will", "response_to": "", "version": 1,
        "sent": "2020-01-01T00:00:00Z",
        "content": {"state": "offline", "dispatchers": null, "canonical_facts": null},
    })
}
