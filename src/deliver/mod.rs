//! Delivering: speak the connection's dialect, publish, wait for the broker.

mod answers;
mod asking;
mod embedded;
mod outside;
mod refusals;

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::Value;
use uuid::Uuid;

use crate::domain::{ClientId, Clock, Connection, OutgoingMessage};
use crate::protocol::{self, ClientTopic, Command, Route, Topics};
use crate::telemetry::metrics;

pub use answers::{Answers, Overheard};
pub use asking::{Answered, Question, Reply};
pub use embedded::EmbeddedOutlet;
pub use outside::OutsideOutlet;
pub use refusals::tell_refusals;

/// A way to a broker.
#[async_trait]
pub trait Outlet: Send + Sync + 'static {
    /// Publishes, and returns when the broker has it.
    async fn publish(
        &self,
        client: &ClientId,
        topic: String,
        payload: Vec<u8>,
    ) -> Result<(), OutletError>;

    /// Sees to it that what clients say on this topic is heard, for as long as the answer is held.
    async fn listen(&self, topic: String) -> Result<Listening, OutletError>;
}

/// Held while a topic is listened on.
pub type Listening = Box<dyn Send>;

/// The broker does not have the message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OutletError {
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
    Unsure {
        /// The message's id.
        id: Uuid,
        /// Why.
        problem: String,
    },
}

impl SendError {
    fn of(id: Uuid, error: OutletError) -> Self {
        match error {
            OutletError::NotConnected => Self::NotConnected,
            OutletError::Unavailable(problem) => Self::Unavailable { id, problem },
            OutletError::TimedOut(problem) => Self::Unsure { id, problem },
        }
    }
}

/// Sends messages to clients. A clone is the same.
#[derive(Clone)]
pub struct Delivery {
    outlet: Arc<dyn Outlet>,
    answers: Answers,
    topics: Topics,
    clock: Arc<dyn Clock>,
}

impl Delivery {
    /// Delivers through this outlet, and hears the answers there.
    #[must_use]
    pub fn new(
        outlet: Arc<dyn Outlet>,
        answers: Answers,
        topics: Topics,
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
        route: Route,
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
            Err(OutletError::NotConnected) => "no_connection",
            Err(OutletError::Unavailable(_)) => "unavailable",
            Err(OutletError::TimedOut(_)) => "timed_out",
        };
        metrics::sent(label);
        published
            .map(|()| id)
            .map_err(|error| SendError::of(id, error))
    }
}
