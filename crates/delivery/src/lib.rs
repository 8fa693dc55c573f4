//! Delivers messages, commands and requests to clients. Each message is encoded in the client's
//! dialect and published with QoS 1.
//!
//! `embedded_publisher` publishes through the embedded broker, `mqtt_publisher` through an external
//! broker. `request_response` and `pending_responses` wait for a client's response, and
//! `response_receiver` limits what clients send meanwhile.
//! `tracked` stores the state of tracked messages. `handshake_errors` publishes handshake errors. Authorization of callers belongs to `api`.

mod embedded_publisher;
mod handshake_errors;
pub mod metrics;
mod mqtt_publisher;
mod pending_responses;
mod request_response;
mod response_receiver;
mod tracked;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;
use uuid::Uuid;

use domain::{ClientId, Clock, Connection, DialectName, OutgoingMessage};
use protocol::{Channel, ClientTopic, Command, Dialect, EncodedMessage, TopicScheme};

pub use embedded_publisher::EmbeddedPublisher;
pub use handshake_errors::publish_handshake_errors;
pub use mqtt_publisher::MqttPublisher;
pub use pending_responses::{PendingResponses, ResponseMatchingSink};
pub use request_response::{ClientRequest, ReceivedResponse, RequestOutcome};
pub use response_receiver::ResponseReceiver;
pub use tracked::{MessageSender, TrackedDelivery, TrackedSendError};

/// Publishes messages to clients through a broker.
#[async_trait]
pub trait ClientPublisher: Send + Sync + 'static {
    /// Publishes a message with QoS 1. Returns when the broker has acknowledged the message.
    async fn publish(
        &self,
        client: &ClientId,
        topic: String,
        payload: Vec<u8>,
        ack_timeout: Duration,
    ) -> Result<(), PublishError>;

    /// Subscribes to a topic of a client. The subscription ends when the returned value is dropped.
    async fn subscribe(
        &self,
        topic: String,
        ack_timeout: Duration,
    ) -> Result<Subscription, PublishError>;
}

/// A subscription to a topic. Dropping the value ends the subscription.
pub type Subscription = Box<dyn Send>;

/// Publishing a message or subscribing to a topic failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// The client has no connection to the broker, or has not subscribed to its topic.
    #[error("the client is not connected")]
    NotConnected,
    /// The broker is unavailable or rejected the message. Contains the reason.
    #[error("{0}")]
    Unavailable(String),
    /// The broker did not acknowledge the message in time. The message may still arrive.
    #[error("{0}")]
    TimedOut(String),
}

/// The content of a message to a client.
#[derive(Debug, Clone, PartialEq)]
pub struct MessageContent {
    /// Name that selects an application on the client. This application receives the message.
    pub directive: String,
    /// Key-value pairs for the application: null, or a map of string to string.
    pub metadata: Value,
    /// Any JSON value for the application.
    pub payload: Value,
}

/// A message was not sent, or the broker did not acknowledge the message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The client has no connection to the broker.
    #[error("the client is not connected")]
    NotConnected,
    /// The service cannot encode messages to the client, because it has no dialect with this name.
    #[error("the service does not have the client's dialect {dialect:?}")]
    UnknownDialect {
        /// Name of the dialect that is stored for the client.
        dialect: String,
    },
    /// The broker is unavailable or rejected the message.
    #[error("message {message_id} was not sent: {problem}")]
    Unavailable {
        /// Id of the message that was not sent.
        message_id: Uuid,
        /// Why the message was not sent.
        problem: String,
    },
    /// The broker did not acknowledge the message. The message may still arrive.
    #[error("message {message_id} was not acknowledged and may still arrive: {problem}")]
    Unacknowledged {
        /// Id of the message that was not acknowledged.
        message_id: Uuid,
        /// Why the message was not acknowledged.
        problem: String,
    },
}

impl SendError {
    fn new(message_id: Uuid, error: PublishError) -> Self {
        match error {
            PublishError::NotConnected => Self::NotConnected,
            PublishError::Unavailable(problem) => Self::Unavailable {
                message_id,
                problem,
            },
            PublishError::TimedOut(problem) => Self::Unacknowledged {
                message_id,
                problem,
            },
        }
    }
}

/// Result of sending a message to a client. Used as a metric label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendStatus {
    /// The broker acknowledged the message.
    Acknowledged,
    /// The client is not connected.
    NotConnected,
    /// The broker is unavailable or rejected the message.
    Unavailable,
    /// The broker did not acknowledge the message in time.
    TimedOut,
}

impl SendStatus {
    /// Returns the name used as a metric label.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Acknowledged => "acknowledged",
            Self::NotConnected => "not_connected",
            Self::Unavailable => "unavailable",
            Self::TimedOut => "timed_out",
        }
    }
}

impl From<&Result<(), PublishError>> for SendStatus {
    fn from(result: &Result<(), PublishError>) -> Self {
        match result {
            Ok(()) => Self::Acknowledged,
            Err(PublishError::NotConnected) => Self::NotConnected,
            Err(PublishError::Unavailable(_)) => Self::Unavailable,
            Err(PublishError::TimedOut(_)) => Self::TimedOut,
        }
    }
}

/// Sends messages to clients. Each method takes the maximum time to wait for the broker's
/// acknowledgement, so each caller can choose it. Clones share the publisher and the pending responses.
#[derive(Clone)]
pub struct Delivery {
    publisher: Arc<dyn ClientPublisher>,
    pending_responses: PendingResponses,
    topics: TopicScheme,
    clock: Arc<dyn Clock>,
}

impl Delivery {
    /// Creates a `Delivery` that publishes messages with `publisher`.
    ///
    /// The caller must pass each message from a client to `pending_responses`. Otherwise requests
    /// receive no responses.
    #[must_use]
    pub fn new(
        publisher: Arc<dyn ClientPublisher>,
        pending_responses: PendingResponses,
        topics: TopicScheme,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            publisher,
            pending_responses,
            topics,
            clock,
        }
    }

    /// Sends a message to a client. After the broker has acknowledged the message, returns the
    /// message id.
    ///
    /// # Errors
    /// If the client's dialect is unknown, or the broker did not accept or acknowledge the message.
    pub async fn send(
        &self,
        connection: &Connection,
        content: MessageContent,
        ack_timeout: Duration,
    ) -> Result<Uuid, SendError> {
        let message = OutgoingMessage {
            message_id: Uuid::new_v4(),
            sent: self.clock.now(),
            directive: content.directive,
            metadata: content.metadata,
            payload: content.payload,
        };
        let encoded_message = self.dialect_of(connection)?.encode_message(&message);
        self.publish(connection, encoded_message, message.message_id, ack_timeout)
            .await
    }

    /// Sends a command to a client. After the broker has acknowledged the command, returns the
    /// message id of the command. Returns `None` if the client's dialect does not have this
    /// command.
    ///
    /// # Errors
    /// If the client's dialect is unknown, or the broker did not accept or acknowledge the command.
    pub async fn send_command(
        &self,
        connection: &Connection,
        command: &Command,
        ack_timeout: Duration,
    ) -> Result<Option<Uuid>, SendError> {
        let message_id = Uuid::new_v4();
        let now = self.clock.now();
        let dialect = self.dialect_of(connection)?;
        let Some(encoded_command) = dialect.encode_command(command, message_id, now) else {
            return Ok(None);
        };
        self.publish(connection, encoded_command, message_id, ack_timeout)
            .await
            .map(Some)
    }

    /// Returns the dialect of a client.
    fn dialect_of(&self, connection: &Connection) -> Result<&'static dyn Dialect, SendError> {
        let dialect = self.topics.find_dialect(&connection.dialect);
        dialect.ok_or_else(|| unknown_dialect_error(&connection.dialect))
    }

    /// Returns the name of the client's topic for a channel.
    fn topic_name(&self, connection: &Connection, channel: Channel) -> Result<String, SendError> {
        let topic_name = self.topics.topic_name(&ClientTopic {
            prefix: connection.topic_prefix.clone(),
            client: connection.client_id.clone(),
            channel,
        });
        // The topic scheme has the topics of all its dialects. It has no topic only if the dialect
        // is missing.
        topic_name.ok_or_else(|| unknown_dialect_error(&connection.dialect))
    }

    /// Publishes an encoded message. Returns `message_id` after the broker has acknowledged the
    /// message.
    async fn publish(
        &self,
        connection: &Connection,
        encoded_message: EncodedMessage,
        message_id: Uuid,
        ack_timeout: Duration,
    ) -> Result<Uuid, SendError> {
        let client = &connection.client_id;
        let EncodedMessage { channel, payload } = encoded_message;
        let topic = self.topic_name(connection, channel)?;
        let publish_result = self
            .publisher
            .publish(client, topic, payload, ack_timeout)
            .await;
        metrics::count_message_to_client(SendStatus::from(&publish_result).as_str());
        publish_result
            .map(|()| message_id)
            .map_err(|error| SendError::new(message_id, error))
    }
}

/// Counts the message as not sent, and returns the error for the caller.
fn unknown_dialect_error(dialect: &DialectName) -> SendError {
    metrics::count_message_to_client(SendStatus::Unavailable.as_str());
    SendError::UnknownDialect {
        dialect: dialect.as_str().to_owned(),
    }
}
