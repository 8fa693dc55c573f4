//! The liveness sweep and its connection to the broker (role `updaters`), and the progress of recording that it
//! needs (role `record`).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};

use super::mqtt_ingest::process_name;
use super::topic_scheme;
use crate::config::Config;
use domain::{Clock, DialectName, Timestamp};
use jobs::{LivenessProbe, LivenessSweep, ProbeMethod, SweepConfig};
use mqtt::{
    ConnectOptions, IncomingMessage, MessageReaction, OnMessage, ReconnectingClient, SessionKind,
};
use protocol::{
    Channel, ClientMessage, ClientTopic, Command, Direction, InboundMessage, TopicScheme,
};
use service::TaskGroup;
use store::{Repositories, WatchedConnection};

/// How long to wait for a retained message after the broker has confirmed the subscription. The broker sends
/// it at once.
const RETAINED_MESSAGE_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a command waits for its connection to the broker.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
const CONNECT_CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// Topic on which Mosquitto and other brokers publish the time since their start.
const UPTIME_TOPIC: &str = "$SYS/broker/uptime";

/// The sweep, and its connection to the broker.
pub struct LivenessSweepParts {
    /// The sweep.
    pub sweep: LivenessSweep,
    /// The connection, which must be kept open.
    pub connection: ReconnectingClient,
}

/// Returns whether the deployment has a sweep: it needs an external broker, and the progress of the Kafka
/// readers.
#[must_use]
pub fn has_liveness_sweep(config: &Config) -> bool {
    config.mqtt.url.is_some()
        && config.kafka.brokers.is_some()
        && !config.presence.silent_after.get().is_zero()
}

/// Creates the sweep. `suffix` distinguishes processes of one host in the lease.
///
/// # Errors
/// When a setting of the connection is invalid.
pub fn liveness_sweep(
    config: &Config,
    repositories: &Repositories,
    clock: Arc<dyn Clock>,
    suffix: &str,
) -> Result<LivenessSweepParts> {
    let presence = &config.presence;
    let retained = RetainedMessages::default();
    // Several processes have the role `updaters`, and the broker allows one connection per client id.
    let unique_id = uuid::Uuid::new_v4().simple();
    let client_id = format!("{}-{unique_id}", presence.sweep_client_id);
    let options = ConnectOptions::from_config(&config.mqtt, &client_id, SessionKind::Clean);
    let connection = ReconnectingClient::new(options, retained.on_message())?;
    let probe = MqttLivenessProbe {
        connection: connection.clone(),
        retained,
        topics: topic_scheme(config),
        clock,
        ack_timeout: config.mqtt.publish_timeout.get(),
    };
    let sweep = LivenessSweep::new(
        repositories.liveness.clone(),
        repositories.ingest_epochs.clone(),
        Arc::new(probe),
        SweepConfig {
            silent_after: presence.silent_after.get(),
            ping_timeout: presence.ping_timeout.get(),
            pings_per_second: presence.pings_per_second,
            broker_restart_wait: presence.broker_restart_wait.get(),
            last_seen_interval: presence.last_seen_interval.get(),
            ingest_has_lease: config.mqtt.shared_subscription_group.is_none(),
        },
        format!("{}{suffix}", process_name(config)),
    );
    Ok(LivenessSweepParts { sweep, connection })
}

/// Opens the connection of a sweep that a command runs. The connection is closed when the returned tasks are
/// cancelled.
///
/// # Errors
/// When the broker is not reachable.
pub async fn connect_sweep(connection: &ReconnectingClient) -> Result<TaskGroup> {
    let tasks = TaskGroup::new();
    tasks.spawn_essential(
        "mqtt_liveness",
        connection.clone().stay_connected(tasks.clone()),
    );
    let give_up_at = Instant::now() + CONNECT_TIMEOUT;
    while let Err(reason) = connection.health() {
        if Instant::now() >= give_up_at {
            bail!("{reason}; check mqtt.url and whether the broker is running");
        }
        sleep(CONNECT_CHECK_INTERVAL).await;
    }
    Ok(tasks)
}

/// The retained messages that are awaited, by topic.
#[derive(Clone, Default)]
struct RetainedMessages(Arc<Mutex<HashMap<String, oneshot::Sender<Vec<u8>>>>>);

impl RetainedMessages {
    fn on_message(&self) -> OnMessage {
        let waiting = self.0.clone();
        Arc::new(move |message: IncomingMessage| {
            if let Some(sender) = waiting.lock().remove(&message.topic) {
                // `send` fails if the request has timed out.
                let _ = sender.send(message.payload.to_vec());
            }
            MessageReaction::Continue
        })
    }

    /// Returns the retained message of a topic. Returns `None` if there is none.
    async fn read(
        &self,
        connection: &ReconnectingClient,
        topic: String,
        ack_timeout: Duration,
    ) -> Result<Option<Vec<u8>>, String> {
        let (sender, receiver) = oneshot::channel();
        self.0.lock().insert(topic.clone(), sender);
        let subscription = connection.subscribe(topic.clone(), ack_timeout).await;
        let message = match &subscription {
            Ok(_) => Ok(timeout(RETAINED_MESSAGE_TIMEOUT, receiver)
                .await
                .ok()
                .and_then(Result::ok)),
            Err(error) => Err(error.to_string()),
        };
        self.0.lock().remove(&topic);
        // A lost connection would look like a missing message.
        connection.health()?;
        message
    }
}

/// Reaches clients over a connection to the external broker.
struct MqttLivenessProbe {
    connection: ReconnectingClient,
    retained: RetainedMessages,
    topics: TopicScheme,
    clock: Arc<dyn Clock>,
    ack_timeout: Duration,
}

impl MqttLivenessProbe {
    fn topic_name(&self, connection: &WatchedConnection, channel: Channel) -> Option<String> {
        self.topics.topic_name(&ClientTopic {
            prefix: connection.topic_prefix.clone(),
            client: connection.client_id.clone(),
            channel,
        })
    }
}

#[async_trait]
impl LivenessProbe for MqttLivenessProbe {
    fn method(&self, dialect: &DialectName) -> Option<ProbeMethod> {
        let dialect = self.topics.find_dialect(dialect)?;
        let ping = dialect.encode_command(&Command::Ping, uuid::Uuid::nil(), Timestamp::UNIX_EPOCH);
        Some(match ping {
            Some(_) => ProbeMethod::Ping,
            None => ProbeMethod::RetainedHandshake,
        })
    }

    async fn ping(&self, connection: &WatchedConnection) -> Result<(), String> {
        let unknown_dialect = || format!("unknown dialect {}", connection.dialect.as_str());
        let dialect = self.topics.find_dialect(&connection.dialect);
        let dialect = dialect.ok_or_else(unknown_dialect)?;
        let message_id = uuid::Uuid::new_v4();
        let ping = dialect
            .encode_command(&Command::Ping, message_id, self.clock.now())
            .ok_or_else(unknown_dialect)?;
        let topic = self
            .topic_name(connection, ping.channel)
            .ok_or_else(unknown_dialect)?;
        let publishing = self
            .connection
            .publish(topic, ping.payload, self.ack_timeout);
        publishing.await.map_err(|error| error.to_string())
    }

    async fn has_retained_handshake(&self, connection: &WatchedConnection) -> Result<bool, String> {
        let dialect = self.topics.find_dialect(&connection.dialect);
        let Some(dialect) = dialect else {
            return Err(format!("unknown dialect {}", connection.dialect.as_str()));
        };
        let channels = self.topics.inbound_channels();
        let channels = channels.filter(|channel| {
            channel.direction() == Direction::FromClient
                && channel.dialect().name() == dialect.name()
        });
        for channel in channels {
            let Some(topic) = self.topic_name(connection, channel) else {
                continue;
            };
            let reading = self
                .retained
                .read(&self.connection, topic.clone(), self.ack_timeout);
            if let Some(payload) = reading.await?
                && is_handshake(channel, topic, payload)
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn broker_uptime(&self) -> Option<Duration> {
        let topic = UPTIME_TOPIC.to_owned();
        let reading = self
            .retained
            .read(&self.connection, topic, self.ack_timeout);
        let payload = reading.await.ok().flatten()?;
        parse_uptime(std::str::from_utf8(&payload).ok()?)
    }
}

/// Returns whether a retained message can be a handshake: it is neither empty nor an offline message.
fn is_handshake(channel: Channel, topic: String, payload: Vec<u8>) -> bool {
    if payload.is_empty() {
        return false;
    }
    let message = InboundMessage {
        topic,
        payload: payload.into(),
        retained: true,
        is_operator_replay: false,
        is_last_will: Some(false),
        is_takeover: false,
        received_at: Timestamp::UNIX_EPOCH,
        ingest_stamp: None,
        truncated_from: None,
    };
    !matches!(
        protocol::decode(channel, &message),
        Ok(ClientMessage::Offline { .. })
    )
}

/// Parses an uptime such as `1234 seconds`.
fn parse_uptime(text: &str) -> Option<Duration> {
    let seconds = text.split_whitespace().next()?;
    seconds.parse().ok().map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uptime_of_the_broker_is_parsed() {
        assert_eq!(
            parse_uptime("1234 seconds"),
            Some(Duration::from_secs(1234))
        );
        assert_eq!(parse_uptime("7"), Some(Duration::from_secs(7)));
        assert_eq!(parse_uptime("soon"), None);
        assert_eq!(parse_uptime(""), None);
    }

    #[test]
    fn neither_an_empty_nor_an_offline_message_is_a_handshake() {
        let check = |payload: &str| {
            let payload = payload.as_bytes().to_vec();
            is_handshake(protocol::handshake::FROM_CLIENT, "t".to_owned(), payload)
        };
        assert!(!check(""));
        assert!(!check(r#"{"type":"offline","version":1,"payload":{}}"#));
        assert!(check(r#"{"type":"host-handshake"}"#));
    }
}
