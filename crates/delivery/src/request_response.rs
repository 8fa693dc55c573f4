//! Sends a request to a client and waits for the response.

use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use super::pending_responses::ResponseKind;
use super::{Delivery, MessageContent, SendError};
use domain::{Connection, OutgoingMessage};
use protocol::Command;

/// A request to a client.
#[derive(Debug, Clone, PartialEq)]
pub enum ClientRequest {
    /// The ping command of the client's dialect.
    Ping,
    /// A message to which an application on the client responds.
    Message(MessageContent),
}

/// Result of a request that the broker acknowledged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestOutcome {
    /// Message id of the request.
    pub request_id: Uuid,
    /// The client's response. `None` if the client did not respond before the timeout.
    pub response: Option<ReceivedResponse>,
}

/// A client's response to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceivedResponse {
    /// Time from publishing the request to receiving the response.
    pub round_trip: Duration,
    /// The client's error text, if the client could not handle the request.
    pub client_error: Option<String>,
}

impl Delivery {
    /// Sends a request and waits for the response until the timeout. `ack_timeout` limits only the
    /// wait for the broker. Returns `None` if the client's dialect does not have this kind of
    /// request.
    ///
    /// # Errors
    /// If the client's dialect is unknown, or the broker did not accept or acknowledge the request.
    pub async fn request(
        &self,
        connection: &Connection,
        request: ClientRequest,
        ack_timeout: Duration,
        timeout: Duration,
    ) -> Result<Option<RequestOutcome>, SendError> {
        let request_id = Uuid::new_v4();
        let now = self.clock.now();
        let dialect = self.dialect_of(connection)?;
        let encoded_request = match request {
            ClientRequest::Ping => dialect.encode_command(&Command::Ping, request_id, now),
            ClientRequest::Message(content) => {
                let message = OutgoingMessage {
                    message_id: request_id,
                    sent: now,
                    directive: content.directive,
                    metadata: content.metadata,
                    payload: content.payload,
                };
                Some(dialect.encode_message(&message))
            }
        };
        let Some(encoded_request) = encoded_request else {
            return Ok(None);
        };
        let mut pending_response = self
            .pending_responses
            .add_request(&connection.client_id, request_id);
        // The subscription must exist before the request is published, because the response may
        // arrive before the PUBACK.
        let response_channel = dialect.response_channel(encoded_request.channel);
        let response_topic = self.topic_name(connection, response_channel)?;
        let subscription = self.publisher.subscribe(response_topic, ack_timeout).await;
        let _subscription = subscription.map_err(|error| SendError::new(request_id, error))?;
        let published_at = Instant::now();
        self.publish(connection, encoded_request, request_id, ack_timeout)
            .await?;
        let deadline = published_at + timeout;
        let wait_result = tokio::time::timeout_at(deadline, pending_response.wait()).await;
        let response = wait_result.ok().map(|kind| ReceivedResponse {
            round_trip: published_at.elapsed(),
            client_error: match kind {
                ResponseKind::Success => None,
                ResponseKind::Error(details) => Some(details),
            },
        });
        Ok(Some(RequestOutcome {
            request_id,
            response,
        }))
    }
}
