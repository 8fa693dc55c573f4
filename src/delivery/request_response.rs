//! Asking a client something, and waiting for its answer.

use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use super::{Delivery, Request, SendError};
use crate::domain::{Connection, OutgoingMessage};
use crate::protocol::{self, Channel, ClientTopic, Command, Direction};

/// What a client is asked.
#[derive(Debug, Clone, PartialEq)]
pub enum ClientRequest {
    /// Whether it is there, in the words of its dialect.
    Ping,
    /// Something that its application answers.
    Message(Request),
}

/// What came of a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestOutcome {
    /// The question's id.
    pub id: Uuid,
    /// The answer; none within the time.
    pub answer: Option<ReceivedResponse>,
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceivedResponse {
    /// From the question to the answer.
    pub after: Duration,
    /// The client could not handle the question, and says why.
    pub refusal: Option<String>,
}

impl Delivery {
    /// Asks, and waits for the answer up to a bound. None where the client's dialect has no such
    /// question.
    ///
    /// # Errors
    /// When the question was not sent, or may not have been.
    pub async fn ask(
        &self,
        connection: &Connection,
        question: ClientRequest,
        within: Duration,
    ) -> Result<Option<RequestOutcome>, SendError> {
        let id = Uuid::new_v4();
        let now = self.clock.now();
        let encoded = match question {
            ClientRequest::Ping => {
                protocol::encode_command(connection.dialect, &Command::Ping, id, now)
            }
            ClientRequest::Message(request) => {
                let message = OutgoingMessage {
                    id,
                    sent: now,
                    directive: request.directive,
                    metadata: request.metadata,
                    payload: request.payload,
                };
                Some(protocol::encode_message(connection.dialect, &message))
            }
        };
        let Some((route, payload)) = encoded else {
            return Ok(None);
        };
        let mut expected = self.answers.expect(&connection.client_id, id);
        // Listened before it is asked: some answer faster than the broker acknowledges.
        let listening = self.outlet.listen(self.topics.name(&ClientTopic {
            prefix: connection.topic_prefix.clone(),
            client: connection.client_id.clone(),
            route: answers_on(route),
        }));
        let _listening = listening.await.map_err(|error| SendError::of(id, error))?;
        let asked = Instant::now();
        self.publish(connection, route, id, payload).await?;
        let heard = tokio::time::timeout_at(asked + within, expected.heard()).await;
        let answer = heard.ok().map(|heard| ReceivedResponse {
            after: asked.elapsed(),
            refusal: heard.refusal,
        });
        Ok(Some(RequestOutcome { id, answer }))
    }
}

/// Where a client answers what it heard there.
fn answers_on(route: Channel) -> Channel {
    match route {
        Channel::Control(_) => Channel::Control(Direction::FromClient),
        Channel::Data(_) => Channel::Data(Direction::FromClient),
        Channel::Handshake(_) | Channel::State => Channel::Handshake(Direction::FromClient),
    }
}
