//! Minimal MQTT 3.1.1 client. It shares the CPU with the measured programs, so it implements only
//! the part of MQTT that the benchmarks need.

use anyhow::{Context as _, Result, ensure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

/// User name and password of the connector, which may read the messages of all clients.
const CONNECTOR_CREDENTIALS: (&str, &str) = ("cloud-connector", "cc-secret");

// Types of received packets.
const CONNACK: u8 = 2;
const PUBLISH: u8 = 3;
const PUBACK: u8 = 4;
const SUBACK: u8 = 9;

// First byte of each sent packet. It contains the packet type and flags.
const CONNECT_FIRST_BYTE: u8 = 0x10;
const PUBLISH_QOS1_FIRST_BYTE: u8 = 0x32;
const PUBACK_FIRST_BYTE: u8 = 0x40;
const SUBSCRIBE_FIRST_BYTE: u8 = 0x82;

/// A connection to a broker.
pub struct MqttClient {
    reader: BufReader<OwnedReadHalf>,
    writer: OwnedWriteHalf,
    /// The topic to which [`Self::send_publish`] publishes.
    topic: String,
}

impl MqttClient {
    /// Connects without credentials, as clients of the connector do.
    pub async fn connect(address: &str, client_id: &str) -> Result<Self> {
        Self::open(address, client_id, None).await
    }

    /// Connects with the connector's credentials and subscribes with QoS 1.
    pub async fn subscribe(address: &str, topic_filter: &str) -> Result<Self> {
        let client_id = uuid::Uuid::new_v4().to_string();
        let mut client = Self::open(address, &client_id, Some(CONNECTOR_CREDENTIALS)).await?;
        let packet_id = [0, 1];
        let mut body = packet_id.to_vec();
        append_string(&mut body, topic_filter)?;
        let qos = 1;
        body.push(qos);
        client
            .writer
            .write_all(&encode_packet(SUBSCRIBE_FIRST_BYTE, &body))
            .await?;
        let (packet_type, body) = client.read_packet().await?;
        ensure!(
            packet_type == SUBACK && body.last() == Some(&qos),
            "the broker rejected the subscription to {topic_filter}"
        );
        Ok(client)
    }

    /// Deletes the persistent session of this client id. To delete the session, connects with the
    /// same client id and a clean session. If the session continued to exist, the broker would
    /// queue messages for the session, and would stall whenever it saves the queue.
    pub async fn delete_session(port: u16, client_id: &str) -> Result<()> {
        let address = format!("127.0.0.1:{port}");
        Self::open(&address, client_id, Some(CONNECTOR_CREDENTIALS))
            .await
            .map(drop)
    }

    /// Opens a TCP connection, sends CONNECT and waits for the CONNACK.
    async fn open(
        address: &str,
        client_id: &str,
        credentials: Option<(&str, &str)>,
    ) -> Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (reader, writer) = stream.into_split();
        let mut client = Self {
            reader: BufReader::new(reader),
            writer,
            topic: format!("redhat/insights/{client_id}/control/out"),
        };
        // The flags of CONNECT request a clean session. With credentials, the flags also announce a
        // user name and a password.
        let flags = if credentials.is_some() { 0xc2 } else { 0x02 };
        let keep_alive_seconds: u16 = 60;
        let mut body = b"\0\x04MQTT\x04".to_vec();
        body.push(flags);
        body.extend(keep_alive_seconds.to_be_bytes());
        append_string(&mut body, client_id)?;
        if let Some((user, password)) = credentials {
            append_string(&mut body, user)?;
            append_string(&mut body, password)?;
        }
        client
            .writer
            .write_all(&encode_packet(CONNECT_FIRST_BYTE, &body))
            .await?;
        let (packet_type, body) = client.read_packet().await?;
        ensure!(
            packet_type == CONNACK && body.get(1) == Some(&0),
            "the broker rejected the connection of {client_id}"
        );
        Ok(client)
    }

    /// Sends a PUBLISH with QoS 1, without waiting for the PUBACK.
    pub async fn send_publish(&mut self, packet_id: u16, payload: &[u8]) -> Result<()> {
        let mut body = Vec::with_capacity(payload.len() + 80);
        append_string(&mut body, &self.topic)?;
        body.extend(packet_id.to_be_bytes());
        body.extend(payload);
        let packet = encode_packet(PUBLISH_QOS1_FIRST_BYTE, &body);
        Ok(self.writer.write_all(&packet).await?)
    }

    /// Waits for the next PUBACK and ignores other packets.
    pub async fn wait_for_puback(&mut self) -> Result<()> {
        loop {
            let (packet_type, _) = self.read_packet().await?;
            if packet_type == PUBACK {
                return Ok(());
            }
        }
    }

    /// Publishes with QoS 1 and waits for the PUBACK.
    pub async fn publish(&mut self, packet_id: u16, payload: &[u8]) -> Result<()> {
        self.send_publish(packet_id, payload).await?;
        self.wait_for_puback().await
    }

    /// Waits for the next message and acknowledges it. Returns the topic and the payload.
    pub async fn next_message(&mut self) -> Result<(String, Vec<u8>)> {
        loop {
            let (packet_type, mut body) = self.read_packet().await?;
            if packet_type != PUBLISH {
                continue;
            }
            let topic_length = usize::from(u16::from_be_bytes([body[0], body[1]]));
            let topic_end = 2 + topic_length;
            let payload = body.split_off(topic_end + 2);
            let packet_id = &body[topic_end..];
            let puback = encode_packet(PUBACK_FIRST_BYTE, packet_id);
            self.writer.write_all(&puback).await?;
            let topic = String::from_utf8(body[2..topic_end].to_vec())?;
            return Ok((topic, payload));
        }
    }

    /// Reads one packet. Returns the packet type and the bytes after the fixed header.
    async fn read_packet(&mut self) -> Result<(u8, Vec<u8>)> {
        let first_byte = self.reader.read_u8().await;
        let first_byte = first_byte.context("the broker closed the connection")?;
        let mut length = 0;
        for shift in [0, 7, 14, 21] {
            let byte = self.reader.read_u8().await?;
            length |= usize::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
        }
        let mut body = vec![0; length];
        self.reader.read_exact(&mut body).await?;
        Ok((first_byte >> 4, body))
    }
}

/// Appends a string in MQTT format: two bytes for the length, then the text.
fn append_string(body: &mut Vec<u8>, text: &str) -> Result<()> {
    body.extend(u16::try_from(text.len())?.to_be_bytes());
    body.extend(text.as_bytes());
    Ok(())
}

/// Encodes a packet, which consists of the first byte, the length of the body, and the body.
fn encode_packet(first_byte: u8, body: &[u8]) -> Vec<u8> {
    let mut packet = Vec::with_capacity(body.len() + 5);
    packet.push(first_byte);
    let mut length = body.len();
    while length > 0x7f {
        packet.push(0x80 | length.to_le_bytes()[0]);
        length >>= 7;
    }
    packet.push(length.to_le_bytes()[0]);
    packet.extend(body);
    packet
}
