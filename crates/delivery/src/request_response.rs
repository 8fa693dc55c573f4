//! Sends a request to a client and waits for the response.

use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use super::pending_responses::ResponseKind;
use super::{Delivery, MessageContent, SendError};
use domain::{Connection, OutgoingMessage};
use protocol::{self, Channel, ClientTopic, Command, Direction};

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
    /// Sends a request and waits for the response until the timeout. Returns `None` if the client's
    /// dialect does not have this kind of request.
    ///
    /// # Errors
    /// If the broker did not accept or acknowledge the request.
    pub async fn request(
        &self,
        connection: &Connection,
        request: ClientRequest,
        timeout: Duration,
    ) -> Result<Option<RequestOutcome>, SendError> {
        let request_id = Uuid::new_v4();
        let now = self.clock.now();
        let encoded_request = match request {
            ClientRequest::Ping => {
                protocol::encode_command(connection.dialect, &Command::Ping, request_id, now)
            }
            ClientRequest::Message(content) => {
                let message = OutgoingMessage {
                    message_id: request_id,
                    sent: now,
                    directive: content.directive,
                    metadata: content.metadata,
                    payload: content.payload,
                };
                Some(protocol::encode_message(connection.dialect, &message))
            }
        };
        let Some((channel, payload)) = encoded_request else {
            return Ok(None);
        };
        let mut pending_response = self
            .pending_responses
            .add_request(&connection.client_id, request_id);
        // The subscription must exist before the request is published, because the response may
        // arrive before the PUBACK.
        let response_topic = self.topics.topic_name(&ClientTopic {
            prefix: connection.topic_prefix.clone(),
            client: connection.client_id.clone(),
            channel: response_channel(channel),
        });
        let subscription = self.publisher.subscribe(response_topic).await;
        let _subscription = subscription.map_err(|error| SendError::new(request_id, error))?;
        let published_at = Instant::now();
        self.publish(connection, channel, request_id, payload)
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

/// Returns the channel on which a client responds to a message on `channel`.
fn response_channel(channel: Channel) -> Channel {
    match channel {
        Channel::Control(_) => Channel::Control(Direction::FromClient),
        Channel::Data(_) => Channel::Data(Direction::FromClient),
        Channel::Handshake(_) | Channel::HandshakeStatus => {
            Channel::Handshake(Direction::FromClient)
        }
    }
}
