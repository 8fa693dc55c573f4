//! An MQTT client that says byte for byte what a test wants said, and hides nothing that it hears.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use uuid::Uuid;

use super::TIMEOUT;

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// A packet as it came: the first byte and what follows its length.
#[derive(Debug, Clone, PartialEq)]
pub struct Packet {
    pub first: u8,
    pub body: Vec<u8>,
}

impl Packet {
    /// The packet's type: 2 CONNACK, 3 PUBLISH, 4 PUBACK, 9 SUBACK, 14 DISCONNECT.
    pub fn kind(&self) -> u8 {
        self.first >> 4
    }
}

/// How to connect.
#[derive(Clone)]
pub struct Connect {
    pub client_id: String,
    pub will: Option<(String, Vec<u8>)>,
    pub version: u8,
    /// MQTT 5: seconds that the session outlives its connection, and that the will waits.
    pub session_expiry: u32,
    pub will_delay: u32,
    pub will_retain: bool,
    pub user: Option<(String, String)>,
    /// Seconds. Nothing here sends pings.
    pub keep_alive: u16,
}

impl Connect {
    pub fn new(client_id: &str) -> Self {
        Self {
            client_id: client_id.to_owned(),
            will: None,
            version: 4,
            session_expiry: 0,
            will_delay: 0,
            will_retain: false,
            user: None,
            keep_alive: 30,
        }
    }

    pub fn v5(mut self) -> Self {
        self.version = 5;
        self
    }

    pub fn will(mut self, topic: &str, payload: &[u8]) -> Self {
        self.will = Some((topic.to_owned(), payload.to_vec()));
        self
    }

    /// Without a word for as long as a test takes.
    pub fn patient(mut self) -> Self {
        self.keep_alive = 0;
        self
    }

    pub fn user(mut self, name: &str, password: &str) -> Self {
        self.user = Some((name.to_owned(), password.to_owned()));
        self
    }

    /// With a will that the broker keeps, as clients of the handshake dialect have.
    pub fn retained_will(mut self, topic: &str, payload: &[u8]) -> Self {
        self.will_retain = true;
        self.will(topic, payload)
    }

    /// With the will that real clients have.
    pub fn offline_will(self) -> Self {
        let topic = control_out(&self.client_id);
        self.will(&topic, offline().to_string().as_bytes())
    }

    fn encode(&self) -> Vec<u8> {
        let mut body = text("MQTT");
        body.push(self.version);
        // Clean session; a will with QoS 1.
        let will = if self.will.is_some() { 0x04 | 0x08 } else { 0 };
        let retain = if self.will_retain { 0x20 } else { 0 };
        let user = if self.user.is_some() { 0xc0 } else { 0 };
        body.push(0x02 | will | retain | user);
        body.extend(self.keep_alive.to_be_bytes());
        if self.version == 5 {
            body.extend([5, 0x11]);
            body.extend(self.session_expiry.to_be_bytes());
        }
        body.extend(text(&self.client_id));
        if let Some((topic, payload)) = &self.will {
            if self.version == 5 {
                body.extend([5, 0x18]);
                body.extend(self.will_delay.to_be_bytes());
            }
            body.extend(text(topic));
            body.extend(u16::try_from(payload.len()).unwrap().to_be_bytes());
            body.extend(payload);
        }
        if let Some((name, password)) = &self.user {
            body.extend(text(name));
            body.extend(text(password));
        }
        packet(0x10, &body)
    }
}

pub struct RawClient {
    stream: Box<dyn Stream>,
    version: u8,
    next_id: u16,
}

impl RawClient {
    /// A TCP connection that has said nothing yet.
    pub async fn dial(address: &str) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        Self::over(Box::new(stream))
    }

    /// A TLS connection that has said nothing yet; an error if the broker does not want it.
    pub async fn dial_tls(
        address: &str,
        config: Arc<rustls::ClientConfig>,
    ) -> std::io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        let name = "localhost".try_into().unwrap();
        let stream = TlsConnector::from(config).connect(name, stream).await?;
        Ok(Self::over(Box::new(stream)))
    }

    /// Over a connection that was made already.
    pub fn over_tcp(stream: TcpStream) -> Self {
        Self::over(Box::new(stream))
    }

    fn over(stream: Box<dyn Stream>) -> Self {
        Self {
            stream,
            version: 4,
            next_id: 1,
        }
    }

    /// Connects as a well-behaved client without TLS.
    pub async fn connect(address: &str, connect: &Connect) -> Self {
        let mut client = Self::dial(address).await;
        assert_eq!(client.handshake(connect).await, 0, "{}", connect.client_id);
        client
    }

    /// Sends CONNECT and returns the reason code of the CONNACK; 255 if there is none.
    pub async fn handshake(&mut self, connect: &Connect) -> u8 {
        self.version = connect.version;
        self.write(&connect.encode()).await;
        match self.read().await {
            Some(answer) if answer.kind() == 2 => answer.body[1],
            other => {
                assert_eq!(other, None, "not a CONNACK");
                255
            }
        }
    }

    pub async fn write(&mut self, bytes: &[u8]) {
        // The broker may have hung up; then the next read says so.
        let _ = self.stream.write_all(bytes).await;
        let _ = self.stream.flush().await;
    }

    /// Sends a QoS 1 publish and does not wait.
    pub async fn publish_only(&mut self, topic: &str, payload: &[u8], retain: bool) -> u16 {
        let id = self.next_id;
        self.next_id += 1;
        let mut body = text(topic);
        body.extend(id.to_be_bytes());
        if self.version == 5 {
            body.push(0);
        }
        body.extend(payload);
        self.write(&packet(0x32 | u8::from(retain), &body)).await;
        id
    }

    /// Publishes with QoS 2, both halves.
    pub async fn publish_twice_assured(&mut self, topic: &str, payload: &[u8], retain: bool) {
        let id = self.next_id;
        self.next_id += 1;
        let mut body = text(topic);
        body.extend(id.to_be_bytes());
        if self.version == 5 {
            body.push(0);
        }
        body.extend(payload);
        self.write(&packet(0x34 | u8::from(retain), &body)).await;
        assert_eq!(self.read().await.expect("the broker hung up").kind(), 5);
        self.write(&packet(0x62, &id.to_be_bytes())).await;
        assert_eq!(self.read().await.expect("the broker hung up").kind(), 7);
    }

    /// Sends a QoS 1 publish and returns the PUBACK that answers it; none if the broker hung up.
    pub async fn publish(&mut self, topic: &str, payload: &[u8]) -> Option<Packet> {
        self.publish_with(topic, payload, false).await
    }

    /// The same, for the broker to keep.
    pub async fn publish_retained(&mut self, topic: &str, payload: &[u8]) {
        let answer = self.publish_with(topic, payload, true).await;
        answer.expect("the broker hung up");
    }

    /// Publishes an empty payload with QoS 0, as real clients do at every connect.
    pub async fn show_life(&mut self, topic: &str) {
        let mut body = text(topic);
        if self.version == 5 {
            body.push(0);
        }
        self.write(&packet(0x30, &body)).await;
    }

    async fn publish_with(&mut self, topic: &str, payload: &[u8], retain: bool) -> Option<Packet> {
        let id = self.publish_only(topic, payload, retain).await;
        loop {
            let answer = self.read().await?;
            if answer.kind() == 4 {
                assert_eq!(answer.body[..2], id.to_be_bytes());
                return Some(answer);
            }
        }
    }

    /// Publishes, and demands success.
    pub async fn must_publish(&mut self, topic: &str, payload: &Value) {
        let answer = self.publish(topic, payload.to_string().as_bytes()).await;
        let answer = answer.expect("the broker hung up");
        assert!(
            answer.body.get(2).is_none_or(|code| *code == 0),
            "{answer:?}"
        );
    }

    /// Asks whether the broker is there; its answer is the next packet after those under way.
    pub async fn ping(&mut self) {
        self.write(&[0xc0, 0]).await;
    }

    /// Publishes behind so many others, and waits until all of them are acknowledged.
    pub async fn must_publish_after(&mut self, topic: &str, payload: &Value, others: usize) {
        let bytes = payload.to_string();
        self.publish_only(topic, bytes.as_bytes(), false).await;
        let mut acknowledged = 0;
        while acknowledged <= others {
            let answer = self.read().await.expect("the broker hung up");
            acknowledged += usize::from(answer.kind() == 4);
        }
    }

    /// Subscribes with QoS 1 and returns the reason code; 255 if the broker hung up.
    pub async fn subscribe(&mut self, filter: &str) -> u8 {
        let id = self.next_id;
        self.next_id += 1;
        let mut body = id.to_be_bytes().to_vec();
        if self.version == 5 {
            body.push(0);
        }
        body.extend(text(filter));
        body.push(1);
        self.write(&packet(0x82, &body)).await;
        loop {
            match self.read().await {
                Some(answer) if answer.kind() == 9 => return *answer.body.last().unwrap(),
                Some(_) => {}
                None => return 255,
            }
        }
    }

    /// The next PUBLISH as topic and JSON, acknowledged.
    pub async fn message(&mut self) -> (String, Value) {
        loop {
            let got = self.read().await.expect("the broker hung up");
            if got.kind() != 3 {
                continue;
            }
            let length = usize::from(u16::from_be_bytes([got.body[0], got.body[1]]));
            let topic = String::from_utf8(got.body[2..2 + length].to_vec()).unwrap();
            let mut rest = &got.body[2 + length..];
            if got.first & 0x06 != 0 {
                let id = [rest[0], rest[1]];
                rest = &rest[2..];
                self.write(&packet(0x40, &id)).await;
            }
            if self.version == 5 {
                rest = &rest[1 + usize::from(rest[0])..];
            }
            return (topic, serde_json::from_slice(rest).unwrap());
        }
    }

    pub async fn disconnect(mut self) {
        self.write(&[0xe0, 0]).await;
        self.closed().await;
    }

    /// Reads until the broker has closed the connection.
    pub async fn closed(&mut self) {
        while self.read().await.is_some() {}
    }

    /// The next packet; none when the broker hung up.
    pub async fn read(&mut self) -> Option<Packet> {
        timeout(TIMEOUT, self.read_packet())
            .await
            .expect("the broker says nothing")
            .ok()
    }

    async fn read_packet(&mut self) -> std::io::Result<Packet> {
        let first = self.stream.read_u8().await?;
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
        Ok(Packet { first, body })
    }
}

fn text(text: &str) -> Vec<u8> {
    let mut bytes = u16::try_from(text.len()).unwrap().to_be_bytes().to_vec();
    bytes.extend(text.as_bytes());
    bytes
}

fn packet(first: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![first];
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

pub fn control_out(client: &str) -> String {
    format!("redhat/insights/{client}/control/out")
}

pub fn data_out(client: &str) -> String {
    format!("redhat/insights/{client}/data/out")
}

pub fn data_in(client: &str) -> String {
    format!("redhat/insights/{client}/data/in")
}

pub fn online() -> Value {
    json!({
        "type": "connection-status", "message_id": Uuid::new_v4(), "response_to": "", "version": 1,
        "sent": jiff::Timestamp::now().to_string(),
        "content": {"state": "online", "canonical_facts": {"fqdn": "raw.example"},
            "dispatchers": {"echo": {}}, "tags": {"make": "raw"}},
    })
}

/// The will as real clients build it: once, at their start, long ago.
pub fn offline() -> Value {
    json!({
        "type": "connection-status", "message_id": "the-will", "response_to": "", "version": 1,
        "sent": "2020-01-01T00:00:00Z",
        "content": {"state": "offline", "dispatchers": null, "canonical_facts": null},
    })
}
