use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use parking_lot::Mutex;
use serde_json::Value;

use super::*;
use crate::{ClientPublisher, PendingResponses, Subscription};
use domain::{ClientId, ClientInfo, ClientKind, SystemClock, Timestamp};
use protocol::{DialectSettings, TopicScheme};
use store::{CancelOutcome, IdempotencyKey, MessageFilter, MessagePage, TrackedMessage};

const ACK_TIMEOUT: Duration = Duration::from_secs(2);

/// Stores the ids of new messages, and the results.
#[derive(Default)]
struct FakeMessages {
    inserted: Mutex<Vec<NewMessage>>,
    outcomes: Mutex<Vec<SendOutcome>>,
    is_unavailable: AtomicBool,
}

impl FakeMessages {
    fn check(&self) -> store::Result<()> {
        if self.is_unavailable.load(Ordering::Relaxed) {
            return Err(StoreError::Unavailable("down".into()));
        }
        Ok(())
    }

    async fn wait_for_outcomes(&self, count: usize) -> Vec<SendOutcome> {
        let wait = async {
            while self.outcomes.lock().len() < count {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(Duration::from_hours(1), wait).await.unwrap();
        self.outcomes.lock().clone()
    }
}

#[async_trait]
impl MessageRepository for FakeMessages {
    async fn insert_sending(&self, message: &NewMessage, _: Duration) -> store::Result<()> {
        self.check()?;
        self.inserted.lock().push(message.clone());
        Ok(())
    }

    async fn insert_sending_once(
        &self,
        message: &NewMessage,
        _: Duration,
        request: &IdempotentRequest,
    ) -> store::Result<bool> {
        self.check()?;
        if request.key.key == "used" {
            return Ok(false);
        }
        self.inserted.lock().push(message.clone());
        Ok(true)
    }

    async fn store_send_outcome(
        &self,
        _: &MessageId,
        outcome: SendOutcome,
        _: Timestamp,
    ) -> store::Result<Option<domain::MessageState>> {
        self.check()?;
        self.outcomes.lock().push(outcome);
        Ok(None)
    }

    async fn find_message(
        &self,
        _: &OrgId,
        _: &MessageId,
    ) -> store::Result<Option<TrackedMessage>> {
        Ok(None)
    }

    async fn list_messages(
        &self,
        _: &OrgId,
        _: &MessageFilter,
        _: Option<&MessageId>,
        _: u32,
    ) -> store::Result<MessagePage> {
        Ok(MessagePage::default())
    }

    async fn cancel_message(
        &self,
        _: &OrgId,
        _: &MessageId,
        _: Timestamp,
    ) -> store::Result<CancelOutcome> {
        Ok(CancelOutcome::NotFound)
    }

    async fn fail_expired_sends(&self, _: Timestamp, _: u32) -> store::Result<u64> {
        Ok(0)
    }

    async fn delete_messages_before(&self, _: Timestamp, _: u32) -> store::Result<u64> {
        Ok(0)
    }

    async fn trim_messages(&self, _: u64, _: u32) -> store::Result<u64> {
        Ok(0)
    }
}

/// Acknowledges each message after a time, or returns an error.
struct FakePublisher {
    messages: Arc<FakeMessages>,
    ack_delay: Duration,
    error: Option<PublishError>,
    /// The number of stored messages at the time of each publish.
    stored_before_publish: Mutex<Vec<usize>>,
}

#[async_trait]
impl ClientPublisher for FakePublisher {
    async fn publish(
        &self,
        _: &ClientId,
        _: String,
        _: Vec<u8>,
        _: Duration,
    ) -> Result<(), PublishError> {
        let stored = self.messages.inserted.lock().len();
        self.stored_before_publish.lock().push(stored);
        tokio::time::sleep(self.ack_delay).await;
        self.error.clone().map_or(Ok(()), Err)
    }

    async fn subscribe(&self, _: String, _: Duration) -> Result<Subscription, PublishError> {
        Ok(Box::new(()))
    }
}

struct Fixture {
    messages: Arc<FakeMessages>,
    publisher: Arc<FakePublisher>,
    tracked: TrackedDelivery,
    tasks: TaskGroup,
}

impl Fixture {
    fn new(ack_delay: Duration, error: Option<PublishError>) -> Self {
        let messages = Arc::new(FakeMessages::default());
        let publisher = Arc::new(FakePublisher {
            messages: messages.clone(),
            ack_delay,
            error,
            stored_before_publish: Mutex::default(),
        });
        let topics = TopicScheme::new(vec!["p".to_owned()], &DialectSettings::default());
        let delivery = Delivery::new(
            publisher.clone(),
            PendingResponses::new(topics.clone()),
            topics,
            Arc::new(SystemClock),
        );
        let tasks = TaskGroup::new();
        let lease = Duration::from_secs(15);
        let tracked = TrackedDelivery::new(delivery, messages.clone(), lease, tasks.clone());
        Self {
            messages,
            publisher,
            tracked,
            tasks,
        }
    }

    async fn send(&self) -> Result<Uuid, TrackedSendError> {
        self.send_with(None).await
    }

    async fn send_with(&self, key: Option<&str>) -> Result<Uuid, TrackedSendError> {
        let org = OrgId::new("1").unwrap();
        let content = MessageContent {
            directive: "echo".to_owned(),
            metadata: Value::Null,
            payload: Value::Null,
        };
        let sender = MessageSender {
            org_id: OrgId::new("1").unwrap(),
            caller: "key".to_owned(),
            idempotent_request: key.map(|key| IdempotentRequest {
                key: IdempotencyKey {
                    org,
                    caller: "key".to_owned(),
                    key: key.to_owned(),
                },
                request_hash: String::new(),
                max_duration: Duration::from_secs(30),
            }),
        };
        self.tracked
            .send(&connection(), content, sender, ACK_TIMEOUT)
            .await
    }
}

fn connection() -> Connection {
    Connection {
        client_id: ClientId::new("c").unwrap(),
        tenant: Tenant {
            org_id: OrgId::new("1").unwrap(),
            account: "42".to_owned(),
        },
        dialect: protocol::status::NAME,
        kind: ClientKind::Host,
        topic_prefix: "p".to_owned(),
        info: ClientInfo::default(),
        message_id: None,
        message_sent_at: Timestamp::UNIX_EPOCH,
        online_received_at: Timestamp::UNIX_EPOCH,
        connected_since: Timestamp::UNIX_EPOCH,
        last_seen: Timestamp::UNIX_EPOCH,
    }
}

#[tokio::test(start_paused = true)]
async fn message_is_stored_before_it_is_published_and_its_id_is_recognized() {
    let fixture = Fixture::new(Duration::ZERO, None);
    let id = fixture.send().await.unwrap();
    assert_eq!(*fixture.publisher.stored_before_publish.lock(), [1]);
    let inserted = fixture.messages.inserted.lock()[0].clone();
    assert_eq!(inserted.id, MessageId::from(id));
    assert!(inserted.id.may_be_tracked());
    assert_eq!(inserted.sender.account, "42");
    let outcomes = fixture.messages.wait_for_outcomes(1).await;
    assert_eq!(outcomes, [SendOutcome::Acknowledged]);
}

#[tokio::test(start_paused = true)]
async fn message_that_cannot_be_stored_is_not_published() {
    let fixture = Fixture::new(Duration::ZERO, None);
    fixture
        .messages
        .is_unavailable
        .store(true, Ordering::Relaxed);
    let error = fixture.send().await.unwrap_err();
    assert!(matches!(error, TrackedSendError::Store(_)), "{error}");
    assert!(fixture.publisher.stored_before_publish.lock().is_empty());
}

#[tokio::test(start_paused = true)]
async fn message_whose_idempotency_key_is_in_use_is_not_published() {
    let fixture = Fixture::new(Duration::ZERO, None);
    fixture.send_with(Some("new")).await.unwrap();
    let error = fixture.send_with(Some("used")).await.unwrap_err();
    assert!(matches!(error, TrackedSendError::KeyInUse), "{error}");
    assert_eq!(fixture.publisher.stored_before_publish.lock().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn late_acknowledgement_follows_the_timeout() {
    let fixture = Fixture::new(ACK_TIMEOUT * 3, None);
    let error = fixture.send().await.unwrap_err();
    let is_timeout = matches!(
        error,
        TrackedSendError::Send(SendError::Unacknowledged { .. })
    );
    assert!(is_timeout, "{error}");
    let outcomes = fixture.messages.wait_for_outcomes(2).await;
    let timed_out = SendOutcome::Failed(MessageFailure::BrokerTimeout);
    assert_eq!(outcomes, [timed_out, SendOutcome::Acknowledged]);
}

#[tokio::test(start_paused = true)]
async fn each_error_has_a_reason() {
    for (error, reason) in [
        (PublishError::NotConnected, MessageFailure::NotConnected),
        (
            PublishError::Unavailable("x".to_owned()),
            MessageFailure::BrokerUnavailable,
        ),
        (
            PublishError::TimedOut("x".to_owned()),
            MessageFailure::BrokerTimeout,
        ),
    ] {
        let fixture = Fixture::new(Duration::ZERO, Some(error));
        fixture.send().await.unwrap_err();
        let outcomes = fixture.messages.wait_for_outcomes(1).await;
        assert_eq!(outcomes, [SendOutcome::Failed(reason)]);
    }
}

#[tokio::test(start_paused = true)]
async fn result_is_stored_after_an_outage_of_the_database() {
    let fixture = Fixture::new(Duration::from_secs(1), None);
    let outage = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        fixture
            .messages
            .is_unavailable
            .store(true, Ordering::Relaxed);
    };
    let (result, ()) = tokio::join!(fixture.send(), outage);
    // The broker has acknowledged the message.
    result.unwrap();
    assert!(fixture.messages.outcomes.lock().is_empty());
    fixture
        .messages
        .is_unavailable
        .store(false, Ordering::Relaxed);
    let outcomes = fixture.messages.wait_for_outcomes(1).await;
    assert_eq!(outcomes, [SendOutcome::Acknowledged]);
}

#[tokio::test(start_paused = true)]
async fn shutdown_does_not_wait_for_late_acknowledgements() {
    let fixture = Fixture::new(MAX_LATE_ACK_WAIT, None);
    fixture.send().await.unwrap_err();
    assert!(fixture.tasks.stop(Duration::from_secs(1)).await);
}
