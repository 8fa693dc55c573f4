//! Through the broker in this process.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::{Listening, Outlet, OutletError};
use crate::broker::{Broker, PublishError};
use crate::domain::ClientId;

/// The embedded broker as an outlet.
pub struct EmbeddedOutlet {
    broker: Arc<Broker>,
    within: Duration,
}

impl EmbeddedOutlet {
    /// Publishes through this broker, which has so long to take a message.
    #[must_use]
    pub fn new(broker: Arc<Broker>, within: Duration) -> Self {
        Self { broker, within }
    }
}

#[async_trait]
impl Outlet for EmbeddedOutlet {
    async fn publish(
        &self,
        client: &ClientId,
        topic: String,
        payload: Vec<u8>,
    ) -> Result<(), OutletError> {
        self.broker
            .publish(client, topic, payload, self.within)
            .await
            .map_err(|error| match error {
                PublishError::NotConnected => OutletError::NotConnected,
                PublishError::NotSubscribed | PublishError::Backlog | PublishError::Stopping => {
                    OutletError::Unavailable(error.to_string())
                }
                PublishError::TimedOut(_) => OutletError::TimedOut(error.to_string()),
            })
    }

    /// All that clients say passes through this process.
    async fn listen(&self, _topic: String) -> Result<Listening, OutletError> {
        Ok(Box::new(()))
    }
}
