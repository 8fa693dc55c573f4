//! Delivering: find the connection for the organisation, speak its dialect, publish, wait for the
//! broker.

mod embedded;
mod outside;
mod refusals;

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::Value;
use uuid::Uuid;

use crate::domain::{ClientId, Clock, OrgId, OutgoingMessage};
use crate::protocol::{self, ClientTopic, Topics};
use crate::store::{Store, StoreError};
use crate::telemetry::metrics;

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
}

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
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// The organisation has no such connection.
    #[error("the organisation has no connection to that client")]
    NoConnection,
    /// The database could not be asked.
    #[error(transparent)]
    Store(#[from] StoreError),
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

/// Sends messages to clients. A clone is the same.
#[derive(Clone)]
pub struct Delivery {
    store: Arc<dyn Store>,
    outlet: Arc<dyn Outlet>,
    topics: Topics,
    clock: Arc<dyn Clock>,
}

impl Delivery {
    /// Delivers what this store knows through that outlet.
    #[must_use]
    pub fn new(
        store: Arc<dyn Store>,
        outlet: Arc<dyn Outlet>,
        topics: Topics,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            store,
            outlet,
            topics,
            clock,
        }
    }

    /// Sends one message to an organisation's client. The id it returns is the broker's to keep.
    ///
    /// # Errors
    /// When it was not sent, or may not have been.
    pub async fn send(
        &self,
        org: &OrgId,
        client: &ClientId,
        request: Request,
    ) -> Result<Uuid, SendError> {
        let Some(connection) = self.store.find_for_org(org, client).await? else {
            metrics::sent("no_connection");
            return Err(SendError::NoConnection);
        };
        let message = OutgoingMessage {
            id: Uuid::new_v4(),
            sent: self.clock.now(),
            directive: request.directive,
            metadata: request.metadata,
            payload: request.payload,
        };
        let (route, payload) = protocol::encode_message(connection.dialect, &message);
        let topic = self.topics.name(&ClientTopic {
            prefix: connection.topic_prefix,
            client: connection.client_id,
            route,
        });
        match self.outlet.publish(client, topic, payload).await {
            Ok(()) => {
                metrics::sent("acknowledged");
                Ok(message.id)
            }
            Err(OutletError::NotConnected) => {
                metrics::sent("no_connection");
                Err(SendError::NoConnection)
            }
            Err(OutletError::Unavailable(problem)) => {
                metrics::sent("unavailable");
                let id = message.id;
                Err(SendError::Unavailable { id, problem })
            }
            Err(OutletError::TimedOut(problem)) => {
                metrics::sent("timed_out");
                let id = message.id;
                Err(SendError::Unsure { id, problem })
            }
        }
    }
}
