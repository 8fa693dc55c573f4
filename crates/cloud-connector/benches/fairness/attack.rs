//! Clients that send as fast as the broker reads, and reconnect at once when the broker disconnects
//! them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use test_support::Deployment;
use test_support::mqtt::{
    Connect, RawClient, control_out_topic, data_out_topic, encode_publish, online_message,
};
use tokio::task::JoinSet;

/// A kind of misbehavior.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum AttackKind {
    /// Responses that are larger than the connector accepts.
    OversizedResponses,
    /// Publishes to a topic that the client may not use.
    ForbiddenTopic,
    /// QoS 0 messages that are not JSON.
    Garbage,
    /// Large online messages, each with other facts.
    LargeOnlineMessages,
    /// Large responses of clients that are pinged meanwhile.
    ResponsesDuringPings,
}

impl AttackKind {
    pub const ALL: [Self; 5] = [
        Self::OversizedResponses,
        Self::ForbiddenTopic,
        Self::Garbage,
        Self::LargeOnlineMessages,
        Self::ResponsesDuringPings,
    ];

    /// Returns the name that selects this attack on the command line.
    pub fn key(self) -> &'static str {
        match self {
            Self::OversizedResponses => "oversized",
            Self::ForbiddenTopic => "forbidden",
            Self::Garbage => "garbage",
            Self::LargeOnlineMessages => "online",
            Self::ResponsesDuringPings => "pings",
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::OversizedResponses => "4 clients with responses of 1.5 MB",
            Self::ForbiddenTopic => "4 clients with a forbidden topic",
            Self::Garbage => "10 clients with QoS 0 garbage",
            Self::LargeOnlineMessages => "8 clients with online messages of 110 kB",
            Self::ResponsesDuringPings => "4 pinged clients with responses of 1 MB",
        }
    }

    fn client_count(self) -> usize {
        match self {
            Self::Garbage => 10,
            Self::LargeOnlineMessages => 8,
            _ => 4,
        }
    }

    /// Returns the PUBLISH packets that a client sends again and again.
    fn packets(self, client_id: &str) -> Vec<Vec<u8>> {
        let (data_out, control_out) = (data_out_topic(client_id), control_out_topic(client_id));
        match self {
            Self::OversizedResponses => vec![encode_publish(&data_out, 1, &vec![b'x'; 1_500_000])],
            Self::ForbiddenTopic => {
                let topic = format!("yggdrasil/{client_id}/data/out");
                vec![encode_publish(&topic, 0, b"")]
            }
            Self::Garbage => vec![encode_publish(&data_out, 0, &[b'x'; 200])],
            Self::LargeOnlineMessages => (0..10)
                .map(|number| {
                    let message = large_online_message(number);
                    encode_publish(&control_out, 1, message.to_string().as_bytes())
                })
                .collect(),
            Self::ResponsesDuringPings => {
                let content = "x".repeat(1_000_000);
                let message = json!({"type": "data", "message_id": "m", "content": content,
                    "response_to": "00000000-0000-4000-8000-000000000000"});
                vec![encode_publish(&data_out, 1, message.to_string().as_bytes())]
            }
        }
    }
}

fn large_online_message(number: u32) -> Value {
    let mut message = online_message();
    let facts = &mut message["content"]["canonical_facts"];
    facts["number"] = json!(number);
    facts["padding"] = json!("x".repeat(110_000));
    message
}

/// A running attack.
pub struct Attack {
    tasks: JoinSet<()>,
    connect_count: Arc<AtomicU64>,
}

impl Attack {
    /// Starts the attack on the broker at `address`. If the attack includes pings, they are sent to
    /// the API of `deployment`.
    pub fn start(kind: AttackKind, address: &str, deployment: Option<&Deployment>) -> Self {
        let mut attack = Self {
            tasks: JoinSet::new(),
            connect_count: Arc::default(),
        };
        for number in 0..kind.client_count() {
            let client_id = format!("attacker-{number}");
            if kind == AttackKind::ResponsesDuringPings
                && let Some(deployment) = deployment
            {
                let path = format!("/v2/connections/{client_id}/ping?timeout=2s");
                let request = deployment.request("POST", &path);
                attack.tasks.spawn(send_pings(request));
            }
            let connect_count = attack.connect_count.clone();
            attack.tasks.spawn(send_packets(
                kind,
                address.to_owned(),
                client_id,
                connect_count,
            ));
        }
        attack
    }

    /// Ends the attack. Returns the number of MQTT connections that the attackers opened.
    pub async fn stop(mut self) -> u64 {
        self.tasks.shutdown().await;
        self.connect_count.load(Ordering::Relaxed)
    }
}

async fn send_packets(
    kind: AttackKind,
    address: String,
    client_id: String,
    connect_count: Arc<AtomicU64>,
) {
    let packets = kind.packets(&client_id);
    loop {
        let mut client = RawClient::connect_tcp(&address).await;
        connect_count.fetch_add(1, Ordering::Relaxed);
        if client.send_connect(&Connect::new(&client_id)).await != 0 {
            // The broker has rejected the connection because of the number of attempts.
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        }
        client
            .subscribe(&format!("redhat/insights/{client_id}/control/in"))
            .await;
        let online = online_message().to_string();
        let topic = control_out_topic(&client_id);
        client
            .write(&encode_publish(&topic, 1, online.as_bytes()))
            .await;
        for packet in packets.iter().cycle() {
            if client.try_write(packet).await.is_err() {
                break;
            }
            tokio::task::yield_now().await;
        }
    }
}

async fn send_pings(request: reqwest::RequestBuilder) {
    while let Some(request) = request.try_clone() {
        // Failures are expected: the attackers do not respond to pings.
        let _ = request.send().await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
