//! Delivering: speak the connection's dialect, publish, wait for the broker.

mod embedded_publisher;
mod handshake_errors;
mod mqtt_publisher;
mod pending_responses;
mod request_response;

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::Value;
use uuid::Uuid;

use crate::domain::{ClientId, Clock, Connection, OutgoingMessage};
use crate::protocol::{self, Channel, ClientTopic, Command, TopicScheme};
use crate::telemetry::metrics;

pub use embedded_publisher::EmbeddedPublisher;
pub use handshake_errors::publish_handshake_errors;
pub use mqtt_publisher::MqttPublisher;
pub use pending_responses::{PendingResponses, ResponseTap};
pub use request_response::{ClientRequest, ReceivedResponse, RequestOutcome};

/// A way to a broker.
#[async_trait]
pub trait ClientPublisher: Send + Sync + 'static {
    /// Publishes, and returns when the broker has it.
    async fn publish(
        &self,
        client: &ClientId,
        topic: String,
        payload: Vec<u8>,
    ) -> Result<(), PublishError>;

    /// Sees to it that what clients say on this topic is heard, for as long as the answer is held.
    async fn listen(&self, topic: String) -> Result<Subscription, PublishError>;
}

/// Held while a topic is listened on.
pub type Subscription = Box<dyn Send>;

/// The broker does not have the message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// The broker knows that the client is not there.
    #[error("the client is not connected")]
    NotConnected,
    /// The broker cannot take it now.
    #[error("{0}")]
    Unavailable(String),
    /// It did not say in time: the message may still arrive.
    #[error("{0}")]
    TimedOut(String),
}

/// What a caller wants sent.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// What the receiving application goes by.
    pub directive: String,
    /// Null, or a map of string to string.
    pub metadata: Value,
    /// The application's own.
    pub payload: Value,
}

/// Why a message was not sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The broker knows that the client is not there.
    #[error("the client is not connected")]
    NotConnected,
    /// The broker cannot take it now.
    #[error("message {id} was not sent: {problem}")]
    Unavailable {
        /// The message's id.
        id: Uuid,
        /// Why.
        problem: String,
    },
    /// The broker did not say that it has it: it may still arrive.
    #[error("message {id} may or may not arrive: {problem}")]
    Unacknowledged {
        /// The message's id.
        id: Uuid,
        /// Why.
        problem: String,
    },
}

impl SendError {
    fn of(id: Uuid, error: PublishError) -> Self {
        match error {
            PublishError::NotConnected => Self::NotConnected,
            PublishError::Unavailable(problem) => Self::Unavailable { id, problem },
            PublishError::TimedOut(problem) => Self::Unacknowledged { id, problem },
        }
    }
}

/// Sends messages to clients. A clone is the same.
#[derive(Clone)]
pub struct Delivery {
    outlet: Arc<dyn ClientPublisher>,
    answers: PendingResponses,
    topics: TopicScheme,
    clock: Arc<dyn Clock>,
}

impl Delivery {
    /// Delivers through this outlet, and hears the answers there.
    #[must_use]
    pub fn new(
        outlet: Arc<dyn ClientPublisher>,
        answers: PendingResponses,
        topics: TopicScheme,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            outlet,
            answers,
            topics,
            clock,
        }
    }

    /// Sends a message. The id it returns is that of a message that the broker has.
    ///
    /// # Errors
    /// When it was not sent, or may not have been.
    pub async fn send(&self, connection: &Connection, request: Request) -> Result<Uuid, SendError> {
        let message = OutgoingMessage {
            id: Uuid::new_v4(),
            sent: self.clock.now(),
            directive: request.directive,
            metadata: request.metadata,
            payload: request.payload,
        };
        let (route, payload) = protocol::encode_message(connection.dialect, &message);
        self.publish(connection, route, message.id, payload).await
    }

    /// Sends a command. None where the client's dialect has no such thing.
    ///
    /// # Errors
    /// When it was not sent, or may not have been.
    pub async fn command(
        &self,
        connection: &Connection,
        command: &Command,
    ) -> Result<Option<Uuid>, SendError> {
        let id = Uuid::new_v4();
        let encoded = protocol::encode_command(connection.dialect, command, id, self.clock.now());
        let Some((route, payload)) = encoded else {
            return Ok(None);
        };
        let sent = self.publish(connection, route, id, payload).await?;
        Ok(Some(sent))
    }

    async fn publish(
        &self,
        connection: &Connection,
        route: Channel,
        id: Uuid,
        payload: Vec<u8>,
    ) -> Result<Uuid, SendError> {
        let client = &connection.client_id;
        let topic = self.topics.name(&ClientTopic {
            prefix: connection.topic_prefix.clone(),
            client: client.clone(),
            route,
        });
        let published = self.outlet.publish(client, topic, payload).await;
        let label = match &published {
            Ok(()) => "acknowledged",
            Err(PublishError::NotConnected) => "no_connection",
            Err(PublishError::Unavailable(_)) => "unavailable",
            Err(PublishError::TimedOut(_)) => "timed_out",
        };
        metrics::sent(label);
        published
            .map(|()| id)
            .map_err(|error| SendError::of(id, error))
    }
}
