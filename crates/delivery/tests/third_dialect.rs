//! Proves that delivery uses any dialect of its topic scheme, and reports an error for a client
//! whose stored dialect is unknown.

#[path = "../../protocol/tests/line/mod.rs"]
mod line;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use delivery::{
    ClientPublisher, ClientRequest, Delivery, MessageContent, PendingResponses, PublishError,
    SendError, Subscription, publish_handshake_errors,
};
use domain::{
    ClientId, ClientInfo, ClientKind, Connection, DialectName, OrgId, SystemClock, Tenant,
    Timestamp,
};
use line::LineDialect;
use protocol::{
    Command, Dialect, DialectSettings, HandshakeError, InboundMessage, Rejection, TopicScheme,
};
use service::TaskGroup;

const DIALECTS: &[&dyn Dialect] = &[&LineDialect];

fn topic_scheme() -> TopicScheme {
    TopicScheme::with_dialects(DIALECTS, vec!["p".into()], &DialectSettings::default())
}

const ACK_TIMEOUT: Duration = Duration::from_secs(2);

/// Stores the published messages. Responds to each ping like a client.
struct FakePublisher {
    published: Mutex<Vec<(String, String)>>,
    subscriptions: Mutex<Vec<String>>,
    pending_responses: PendingResponses,
}

#[async_trait]
impl ClientPublisher for FakePublisher {
    async fn publish(
        &self,
        _client: &ClientId,
        topic: String,
        payload: Vec<u8>,
        _ack_timeout: Duration,
    ) -> Result<(), PublishError> {
        let line = String::from_utf8(payload).unwrap();
        if let Some(message_id) = line.strip_prefix("ping ") {
            self.pending_responses.on_message(&InboundMessage {
                topic: "p/c/line/out".to_owned(),
                payload: Bytes::from(format!("pong {message_id}")),
                retained: false,
                is_operator_replay: false,
                is_last_will: None,
                is_takeover: false,
                received_at: Timestamp::UNIX_EPOCH,
                ingest_stamp: None,
                truncated_from: None,
            });
        }
        self.published.lock().push((topic, line));
        Ok(())
    }

    async fn subscribe(
        &self,
        topic: String,
        _ack_timeout: Duration,
    ) -> Result<Subscription, PublishError> {
        self.subscriptions.lock().push(topic);
        Ok(Box::new(()))
    }
}

fn fake_delivery() -> (Delivery, Arc<FakePublisher>) {
    let pending_responses = PendingResponses::new(topic_scheme());
    let publisher = Arc::new(FakePublisher {
        published: Mutex::default(),
        subscriptions: Mutex::default(),
        pending_responses: pending_responses.clone(),
    });
    let delivery = Delivery::new(
        publisher.clone(),
        pending_responses,
        topic_scheme(),
        Arc::new(SystemClock),
    );
    (delivery, publisher)
}

fn connection(dialect: DialectName) -> Connection {
    Connection {
        client_id: ClientId::new("c").unwrap(),
        tenant: Tenant {
            org_id: OrgId::new("1").unwrap(),
            account: String::new(),
        },
        dialect,
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

fn content() -> MessageContent {
    MessageContent {
        directive: "echo".to_owned(),
        metadata: Value::Null,
        payload: json!("hello"),
    }
}

#[tokio::test]
async fn messages_and_commands_are_encoded_in_the_dialect_of_the_connection() {
    let (delivery, publisher) = fake_delivery();
    let connection = connection("line".to_owned().into());
    let message_id = delivery
        .send(&connection, content(), ACK_TIMEOUT)
        .await
        .unwrap();
    let disconnect = Command::Disconnect {
        message: "bye".to_owned(),
    };
    let command_id = delivery
        .send_command(&connection, &disconnect, ACK_TIMEOUT)
        .await;
    let command_id = command_id.unwrap().unwrap();
    let topic = "p/c/line/in".to_owned();
    let expected = [
        (topic.clone(), format!("run {message_id} echo \"hello\"")),
        (topic, format!("disconnect {command_id} bye")),
    ];
    assert_eq!(*publisher.published.lock(), expected);
    let reconnect = Command::Reconnect {
        delay_seconds: 1,
        message: String::new(),
    };
    let reconnect_result = delivery
        .send_command(&connection, &reconnect, ACK_TIMEOUT)
        .await;
    assert_eq!(reconnect_result, Ok(None), "the dialect has no reconnect");
}

#[tokio::test]
async fn request_waits_for_the_response_on_the_response_channel_of_the_dialect() {
    let (delivery, publisher) = fake_delivery();
    let timeout = Duration::from_secs(10);
    let connection = connection(line::NAME);
    let request = delivery.request(&connection, ClientRequest::Ping, ACK_TIMEOUT, timeout);
    let response = request.await.unwrap().unwrap().response.unwrap();
    assert_eq!(response.client_error, None);
    assert_eq!(*publisher.subscriptions.lock(), ["p/c/line/out"]);
}

#[tokio::test]
async fn sending_to_a_client_of_an_unknown_dialect_is_an_error() {
    let (delivery, publisher) = fake_delivery();
    let connection = connection("removed".to_owned().into());
    let error = SendError::UnknownDialect {
        dialect: "removed".to_owned(),
    };
    let timeout = Duration::from_secs(10);
    assert_eq!(
        delivery.send(&connection, content(), ACK_TIMEOUT).await,
        Err(error.clone())
    );
    assert_eq!(
        delivery
            .send_command(&connection, &Command::Ping, ACK_TIMEOUT)
            .await,
        Err(error.clone())
    );
    assert_eq!(
        delivery
            .request(&connection, ClientRequest::Ping, ACK_TIMEOUT, timeout)
            .await,
        Err(error)
    );
    assert!(publisher.published.lock().is_empty());
}

#[tokio::test]
async fn handshake_error_is_encoded_in_the_dialect_of_the_invalid_handshake() {
    let (_, publisher) = fake_delivery();
    let (sender, receiver) = mpsc::channel(1);
    let topic = topic_scheme().parse("p/c/line/out").unwrap();
    let error = HandshakeError {
        in_response_to: None,
        rejection: Rejection::invalid_schema("fqdn is empty"),
    };
    sender.send((topic, error)).await.unwrap();
    let tasks = TaskGroup::new();
    let publish = publish_handshake_errors(
        receiver,
        publisher.clone(),
        topic_scheme(),
        Arc::new(SystemClock),
        ACK_TIMEOUT,
        tasks.clone(),
    );
    let wait_until_published = async {
        while publisher.published.lock().is_empty() {
            tokio::task::yield_now().await;
        }
        tasks.cancel();
    };
    let both = async { tokio::join!(publish, wait_until_published) };
    tokio::time::timeout(Duration::from_secs(10), both)
        .await
        .unwrap();
    let expected = ("p/c/line/in".to_owned(), "invalid fqdn is empty".to_owned());
    assert_eq!(*publisher.published.lock(), [expected]);
}
