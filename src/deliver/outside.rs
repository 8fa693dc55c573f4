//! Through an outside broker, over one connection that is kept up.

use std::time::Duration;

use async_trait::async_trait;

use super::{Listening, Outlet, OutletError};
use crate::domain::ClientId;
use crate::mqtt::{KeptConnection, PublishError};

/// An outside broker as an outlet.
pub struct OutsideOutlet {
    connection: KeptConnection,
    within: Duration,
}

impl OutsideOutlet {
    /// Publishes over this connection; the broker has so long to acknowledge.
    #[must_use]
    pub fn new(connection: KeptConnection, within: Duration) -> Self {
        Self { connection, within }
    }
}

#[async_trait]
impl Outlet for OutsideOutlet {
    async fn publish(
        &self,
        _client: &ClientId,
        topic: String,
        payload: Vec<u8>,
    ) -> Result<(), OutletError> {
        self.connection
            .publish(topic, payload, self.within)
            .await
            .map_err(|error| match error {
                PublishError::Down(_) | PublishError::Refused => {
                    OutletError::Unavailable(error.to_string())
                }
                PublishError::Lost => {
                    OutletError::Unavailable(format!("{error}; it may still arrive"))
                }
                PublishError::TimedOut(_) => OutletError::TimedOut(error.to_string()),
            })
    }

    /// Answers come to whoever asked, over the connection that asked: none of it concerns the
    /// others.
    async fn listen(&self, topic: String) -> Result<Listening, OutletError> {
        let listening = self.connection.listen(topic, self.within).await;
        // Nothing was sent yet, whatever happened.
        let listening = listening.map_err(|error| OutletError::Unavailable(error.to_string()))?;
        Ok(Box::new(listening))
    }
}
