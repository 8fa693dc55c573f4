//! A client's connection to the broker, which may close at any time, and the client's log entries.

use std::time::Duration;

use jiff::Timestamp;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::dialect::{self, Message};
use crate::plan::Profile;
use crate::random::Random;
use test_support::mqtt::{Connect, RawClient, data_out_topic};

const PUBACK: u8 = 4;

/// The client reconnects if the broker does not respond for this long. This timeout is longer than
/// every pause in the plan. The timeout must be shorter than the timeout of `RawClient`, because
/// the test fails when `RawClient` times out.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(40);

/// An event of a client. The report contains these events if the test fails.
#[derive(Debug, Clone)]
pub struct LogEntry {
    pub time: Timestamp,
    /// Number of the connection on which the event happened.
    pub connection_number: u32,
    pub event: String,
    pub message: Option<Message>,
}

impl LogEntry {
    pub fn new(connection_number: u32, event: &str) -> Self {
        Self {
            time: Timestamp::now(),
            connection_number,
            event: event.to_owned(),
            message: None,
        }
    }

    pub fn with_message(connection_number: u32, event: &str, message: &Message) -> Self {
        Self {
            message: Some(message.clone()),
            ..Self::new(connection_number, event)
        }
    }
}

/// An open connection of a simulated client.
pub struct Connection {
    client: RawClient,
    /// Number of the connection attempt that opened the connection.
    pub connection_number: u32,
}

impl Connection {
    /// Opens a connection, and retries until an attempt succeeds. Adds 1 to
    /// `attempt_count` for each attempt.
    pub async fn open(
        address: &str,
        profile: &Profile,
        attempt_count: &mut u32,
        random: &mut Random,
        log: &mut impl FnMut(LogEntry),
    ) -> Self {
        let connect = dialect::connect_packet(profile);
        let mut retry_millis = random.between(20, 300);
        loop {
            *attempt_count += 1;
            let mut log_event = |event: &str| log(LogEntry::new(*attempt_count, event));
            match timeout(RESPONSE_TIMEOUT, try_connect(address, &connect)).await {
                Ok(Ok(mut client)) => {
                    log_event("connected");
                    if !profile.uses_handshake {
                        client
                            .publish_heartbeat(&data_out_topic(&profile.client_id))
                            .await;
                    }
                    return Self {
                        client,
                        connection_number: *attempt_count,
                    };
                }
                Ok(Err(reason)) => log_event(&format!("connection failed: {reason}")),
                Err(_) => log_event("connection failed: no response from the broker"),
            }
            sleep(Duration::from_millis(retry_millis)).await;
            retry_millis = (retry_millis * 2).min(random.between(400, 1000));
        }
    }

    /// Publishes all messages, then waits for the PUBACK packets. Returns for each message whether
    /// the PUBACK arrived before the connection closed.
    pub async fn publish(&mut self, messages: &[Message]) -> Vec<bool> {
        let mut acknowledged = vec![false; messages.len()];
        let publish_and_wait = async {
            let mut packet_ids = Vec::new();
            for message in messages {
                let (topic, payload) = (&message.topic, &message.payload);
                let packet_id = self
                    .client
                    .send_publish(topic, payload, message.retain)
                    .await;
                packet_ids.push(packet_id.to_be_bytes());
            }
            while acknowledged.contains(&false) {
                let Some(packet) = self.client.read_packet().await else {
                    return;
                };
                let is_puback_of =
                    |id: &[u8; 2]| packet.packet_type() == PUBACK && packet.body[..2] == *id;
                if let Some(index) = packet_ids.iter().position(is_puback_of) {
                    acknowledged[index] = true;
                }
            }
        };
        let _ = timeout(RESPONSE_TIMEOUT, publish_and_wait).await;
        acknowledged
    }

    /// Waits until the connection closes.
    pub async fn wait_for_close(&mut self) {
        loop {
            // The timeout may cancel a read in the middle of a packet. That causes no error,
            // because the connector sends no messages to these clients.
            if let Ok(None) = timeout(RESPONSE_TIMEOUT, self.client.read_packet()).await {
                return;
            }
        }
    }

    pub async fn disconnect(self) {
        let _ = timeout(RESPONSE_TIMEOUT, self.client.disconnect()).await;
    }
}

async fn try_connect(address: &str, connect: &Connect) -> Result<RawClient, String> {
    let stream = TcpStream::connect(address).await;
    let stream = stream.map_err(|error| error.to_string())?;
    stream
        .set_nodelay(true)
        .map_err(|error| error.to_string())?;
    let mut client = RawClient::from_tcp_stream(stream);
    match client.send_connect(connect).await {
        0 => Ok(client),
        code => Err(format!("CONNACK with return code {code}")),
    }
}
