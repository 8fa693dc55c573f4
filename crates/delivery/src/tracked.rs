//! Sends tracked messages: stores the message before it is published, and stores the result.
//!
//! The caller waits until the result is stored. The task that sends a message continues if the caller
//! closes its connection, and waits for a late acknowledgement of the broker.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, oneshot};
use tokio::time::{Instant, timeout};
use uuid::Uuid;

use super::{Delivery, MessageContent, PublishError, SendError, metrics};
use crate::SendStatus;
use domain::{Connection, MessageFailure, MessageId, OrgId, OutgoingMessage, Tenant};
use service::{LogThrottle, TaskGroup};
use store::{IdempotentRequest, MessageRepository, NewMessage, SendOutcome, StoreError};

/// Maximum time to wait for the acknowledgement of the broker.
const MAX_LATE_ACK_WAIT: Duration = Duration::from_mins(1);
/// Maximum number of messages that wait for a late acknowledgement.
const MAX_LATE_ACKS: usize = 10_000;
/// Time for which storing a result is tried again while the database is unavailable.
const MAX_STORE_RETRY_TIME: Duration = Duration::from_mins(5);
const MIN_STORE_RETRY_DELAY: Duration = Duration::from_millis(100);
const MAX_STORE_RETRY_DELAY: Duration = Duration::from_secs(5);

/// Sends tracked messages. Clones share the limits.
#[derive(Clone)]
pub struct TrackedDelivery {
    delivery: Delivery,
    messages: Arc<dyn MessageRepository>,
    /// Time after which another process ends an attempt of this process.
    lease: Duration,
    late_acks: Arc<Semaphore>,
    tasks: TaskGroup,
}

/// The caller that sends a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageSender {
    /// Organization of the caller. Only this organization sees the message.
    pub org_id: OrgId,
    /// Name of the caller.
    pub caller: String,
    /// The idempotency key of the request. `None` if the request has no key.
    pub idempotent_request: Option<IdempotentRequest>,
}

/// A tracked message was not sent, or the broker did not acknowledge it.
#[derive(Debug, thiserror::Error)]
pub enum TrackedSendError {
    /// The message was not sent, or the broker did not acknowledge it.
    #[error(transparent)]
    Send(#[from] SendError),
    /// The message was not stored, and not sent.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The message was not stored, and not sent: another request has the same idempotency key.
    #[error("the idempotency key is already in use")]
    KeyInUse,
}

impl TrackedDelivery {
    /// Creates a `TrackedDelivery` that publishes with `delivery`. Its tasks run in `tasks`.
    #[must_use]
    pub fn new(
        delivery: Delivery,
        messages: Arc<dyn MessageRepository>,
        lease: Duration,
        tasks: TaskGroup,
    ) -> Self {
        Self {
            delivery,
            messages,
            lease,
            late_acks: Arc::new(Semaphore::new(MAX_LATE_ACKS)),
            tasks,
        }
    }

    /// Stores a message in the state `sending`, sends it, and stores the result. Returns the message id
    /// after the broker has acknowledged the message.
    ///
    /// # Errors
    /// If the message was not stored, or the broker did not accept it or did not acknowledge it within
    /// `ack_timeout`.
    pub async fn send(
        &self,
        connection: &Connection,
        content: MessageContent,
        sender: MessageSender,
        ack_timeout: Duration,
    ) -> Result<Uuid, TrackedSendError> {
        let now = self.delivery.clock.now();
        // The version of the id tells the recorder that the message is tracked.
        let message_id = Uuid::now_v7();
        let id = MessageId::from(message_id);
        let directive = content.directive.clone();
        let message = OutgoingMessage {
            message_id,
            sent: now,
            directive: content.directive,
            metadata: content.metadata,
            payload: content.payload,
        };
        let dialect = self.delivery.dialect_of(connection)?;
        let encoded = dialect.encode_message(&message);
        let topic = self.delivery.topic_name(connection, encoded.channel)?;
        let is_own_client = connection.tenant.org_id == sender.org_id;
        let account = connection.tenant.account.clone();
        let new_message = NewMessage {
            id: id.clone(),
            sender: Tenant {
                // The account of a Satellite server of another organization is not the sender's.
                account: if is_own_client {
                    account
                } else {
                    String::new()
                },
                org_id: sender.org_id,
            },
            caller: sender.caller,
            client_id: connection.client_id.clone(),
            client_org: connection.tenant.org_id.clone(),
            directive,
            created_at: now,
        };
        if let Some(request) = &sender.idempotent_request {
            let messages = &self.messages;
            let inserted = messages.insert_sending_once(&new_message, self.lease, request);
            if !inserted.await? {
                return Err(TrackedSendError::KeyInUse);
            }
        } else {
            self.messages
                .insert_sending(&new_message, self.lease)
                .await?;
        }
        let (result_sender, result) = oneshot::channel();
        let attempt = Attempt {
            tracked: self.clone(),
            id,
            connection: connection.clone(),
            topic,
            payload: encoded.payload,
        };
        self.tasks
            .spawn_item("tracked_message", attempt.run(ack_timeout, result_sender));
        // The task sends no result only if it panics, or if the process ends.
        let result = result.await.unwrap_or_else(|_| {
            let problem = "the process is shutting down";
            Err(PublishError::TimedOut(problem.to_owned()))
        });
        match result {
            Ok(()) => Ok(message_id),
            Err(error) => Err(SendError::new(message_id, error).into()),
        }
    }
}

/// One attempt to send a message.
struct Attempt {
    tracked: TrackedDelivery,
    id: MessageId,
    connection: Connection,
    topic: String,
    payload: Vec<u8>,
}

impl Attempt {
    /// Publishes the message, stores the result, and passes it to `result_sender`. After a timeout, waits
    /// for a late acknowledgement.
    async fn run(
        self,
        ack_timeout: Duration,
        result_sender: oneshot::Sender<Result<(), PublishError>>,
    ) {
        let publisher = self.tracked.delivery.publisher.clone();
        let max_wait = ack_timeout.max(MAX_LATE_ACK_WAIT);
        let client_id = self.connection.client_id.clone();
        let publish = publisher.publish(
            &client_id,
            self.topic.clone(),
            self.payload.clone(),
            max_wait,
        );
        tokio::pin!(publish);
        let on_time = timeout(ack_timeout, &mut publish).await;
        let waits_for_late_ack = on_time.is_err();
        let result = on_time.unwrap_or_else(|_| {
            let problem = format!("no acknowledgement from the MQTT broker within {ack_timeout:?}");
            Err(PublishError::TimedOut(problem))
        });
        metrics::count_message_to_client(SendStatus::from(&result).as_str());
        let outcome = outcome_of(&result);
        let is_stored = self.store(outcome).await;
        let _ = result_sender.send(result);
        if !is_stored && !self.store_with_retries(outcome).await {
            return;
        }
        if !waits_for_late_ack {
            return;
        }
        let Ok(_permit) = self.tracked.late_acks.clone().try_acquire_owned() else {
            return;
        };
        // The publisher waits for at most `max_wait`.
        tokio::select! {
            late = &mut publish => if late.is_err() { return },
            () = self.tracked.tasks.cancelled() => return,
        }
        if !self.store(SendOutcome::Acknowledged).await {
            self.store_with_retries(SendOutcome::Acknowledged).await;
        }
    }

    /// Stores the result. Returns false if the database is unavailable.
    async fn store(&self, outcome: SendOutcome) -> bool {
        static LOG_THROTTLE: LogThrottle = LogThrottle::new();
        let now = self.tracked.delivery.clock.now();
        let messages = &self.tracked.messages;
        match messages.store_send_outcome(&self.id, outcome, now).await {
            Ok(_) => true,
            Err(error) => {
                if LOG_THROTTLE.should_log() {
                    tracing::warn!(%error, "failed to store the result of a tracked message; retrying");
                }
                false
            }
        }
    }

    /// Stores the result when the database is available again. Returns false if it was not available in
    /// time, or if the process is shutting down. The lease of the message then expires.
    async fn store_with_retries(&self, outcome: SendOutcome) -> bool {
        let deadline = Instant::now() + MAX_STORE_RETRY_TIME;
        let mut delay = MIN_STORE_RETRY_DELAY;
        while Instant::now() < deadline {
            tokio::select! {
                () = tokio::time::sleep(delay) => {}
                () = self.tracked.tasks.cancelled() => return self.store(outcome).await,
            }
            if self.store(outcome).await {
                return true;
            }
            delay = (delay * 2).min(MAX_STORE_RETRY_DELAY);
        }
        false
    }
}

fn outcome_of(result: &Result<(), PublishError>) -> SendOutcome {
    SendOutcome::Failed(match result {
        Ok(()) => return SendOutcome::Acknowledged,
        Err(PublishError::NotConnected) => MessageFailure::NotConnected,
        Err(PublishError::Unavailable(_)) => MessageFailure::BrokerUnavailable,
        Err(PublishError::TimedOut(_)) => MessageFailure::BrokerTimeout,
    })
}

#[cfg(test)]
mod tests;
