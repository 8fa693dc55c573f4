//! Matches responses from clients with the requests that wait for a response.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::sync::oneshot;
use uuid::Uuid;

use broker::{MessageSink, PendingWrite, PreparedMessage};
use domain::{ClientId, OfflineReason};
use protocol::{self, ClientMessage, ClientResponse, Direction, InboundMessage, TopicScheme};

/// Matches responses from clients with pending requests. A request is pending while it waits for
/// its response. All clones share the same requests.
#[derive(Clone)]
pub struct PendingResponses {
    requests: Arc<PendingRequests>,
    topics: TopicScheme,
}

/// The client that a request was sent to, and the id of the request. A response must come from this
/// client and contain this id. Therefore a client cannot respond to a request that was sent to
/// another client.
type RequestKey = (ClientId, Uuid);

#[derive(Default)]
struct PendingRequests {
    /// The pending requests of each client. Only the messages of these clients are decoded.
    by_client: Mutex<HashMap<ClientId, HashMap<Uuid, oneshot::Sender<ResponseKind>>>>,
    /// Number of clients with pending requests. While this number is 0, no topic is parsed, which
    /// saves time.
    client_count: AtomicUsize,
}

/// The kind of a client's response: success or error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ResponseKind {
    /// The client responded with a pong or with data.
    Success,
    /// The client responded with an error. Contains the error text.
    Error(String),
}

/// The response of a client, and the key of its request.
type DecodedResponse = (RequestKey, ResponseKind);

/// The response to one request, before the response has arrived. Dropping the value removes the
/// request from [`PendingResponses`].
pub(super) struct PendingResponse {
    requests: Arc<PendingRequests>,
    request_key: RequestKey,
    receiver: oneshot::Receiver<ResponseKind>,
}

impl PendingResponses {
    /// Creates a value without pending requests.
    #[must_use]
    pub fn new(topics: TopicScheme) -> Self {
        Self {
            requests: Arc::default(),
            topics,
        }
    }

    /// Adds a pending request. The caller waits for the response with [`PendingResponse::wait`].
    pub(super) fn add_request(&self, client: &ClientId, request_id: Uuid) -> PendingResponse {
        let (sender, receiver) = oneshot::channel();
        let request_key = (client.clone(), request_id);
        let mut by_client = self.requests.by_client.lock();
        let senders = by_client.entry(client.clone()).or_default();
        senders.insert(request_id, sender);
        self.requests
            .client_count
            .store(by_client.len(), Ordering::Release);
        drop(by_client);
        PendingResponse {
            requests: self.requests.clone(),
            request_key,
            receiver,
        }
    }

    /// Checks whether a message from a client is the response to a pending request. If the message
    /// is a response, completes the request and returns true.
    pub fn on_message(&self, message: &InboundMessage) -> bool {
        match self.decode_response(message) {
            Some(response) => self.complete_request(response),
            None => false,
        }
    }

    /// Decodes a message from a client. Returns `None` if no request of the client is pending or if the
    /// message is not a response.
    fn decode_response(&self, message: &InboundMessage) -> Option<DecodedResponse> {
        if self.requests.client_count.load(Ordering::Acquire) == 0 || message.retained {
            return None;
        }
        let topic = self.topics.parse(&message.topic)?;
        if topic.channel.direction() != Direction::FromClient
            || !self.requests.by_client.lock().contains_key(&topic.client)
        {
            return None;
        }
        let Ok(ClientMessage::Response(response)) = protocol::decode(topic.channel, message) else {
            return None;
        };
        let (response_to, kind) = match response {
            ClientResponse::Pong { response_to } | ClientResponse::Data { response_to, .. } => {
                (response_to, ResponseKind::Success)
            }
            ClientResponse::Error {
                response_to,
                details,
            } => (response_to, ResponseKind::Error(details)),
        };
        let request_id = response_to.and_then(|id| Uuid::parse_str(id.as_str()).ok())?;
        Some(((topic.client, request_id), kind))
    }

    /// Completes the pending request of a response. Returns false if no such request is pending.
    fn complete_request(&self, (request_key, kind): DecodedResponse) -> bool {
        let Some(sender) = self.requests.remove(&request_key) else {
            return false;
        };
        // `send` fails if the caller has stopped waiting for the response. That is not an error.
        let _ = sender.send(kind);
        true
    }
}

impl PendingRequests {
    fn remove(&self, (client, request_id): &RequestKey) -> Option<oneshot::Sender<ResponseKind>> {
        let mut by_client = self.by_client.lock();
        let senders = by_client.get_mut(client)?;
        let sender = senders.remove(request_id);
        if senders.is_empty() {
            by_client.remove(client);
            self.client_count.store(by_client.len(), Ordering::Release);
        }
        sender
    }
}

impl PendingResponse {
    /// Waits for the response. Call this method again only if the previous call was cancelled
    /// before it returned a response.
    pub async fn wait(&mut self) -> ResponseKind {
        match (&mut self.receiver).await {
            Ok(kind) => kind,
            // This error is not expected, because the sender is dropped only after it has sent a
            // response. If the error occurs, this method waits until the caller's timeout.
            Err(_) => std::future::pending().await,
        }
    }
}

impl Drop for PendingResponse {
    fn drop(&mut self) {
        self.requests.remove(&self.request_key);
    }
}

/// A message sink for the embedded broker. Passes each message to [`PendingResponses`] and to the
/// inner sink.
pub struct ResponseMatchingSink<S> {
    inner: S,
    pending_responses: PendingResponses,
}

impl<S> ResponseMatchingSink<S> {
    /// Creates a sink that passes messages to `inner` and to `pending_responses`.
    #[must_use]
    pub fn new(inner: S, pending_responses: PendingResponses) -> Self {
        Self {
            inner,
            pending_responses,
        }
    }
}

impl<S: MessageSink> MessageSink for ResponseMatchingSink<S> {
    fn prepare(&self, message: InboundMessage) -> PreparedMessage {
        let response = self.pending_responses.decode_response(&message);
        let message = self.inner.prepare(message);
        let Some(response) = response else {
            return message;
        };
        let pending_responses = self.pending_responses.clone();
        PreparedMessage::new(move || {
            pending_responses.complete_request(response);
            message.submit()
        })
    }

    fn on_client_disconnected(&self, client: ClientId, reason: OfflineReason) -> PendingWrite {
        self.inner.on_client_disconnected(client, reason)
    }

    fn is_overloaded(&self) -> bool {
        self.inner.is_overloaded()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use futures::FutureExt as _;

    use super::*;
    use domain::Timestamp;
    use protocol::DialectSettings;

    fn message(topic: &str, payload: &str) -> InboundMessage {
        InboundMessage {
            topic: topic.to_owned(),
            payload: Bytes::from(payload.to_owned()),
            retained: false,
            is_operator_replay: false,
            is_last_will: None,
            is_takeover: false,
            received_at: Timestamp::UNIX_EPOCH,
            ingest_stamp: None,
            truncated_from: None,
        }
    }

    #[test]
    fn a_request_accepts_only_a_response_of_its_client_with_its_request_id() {
        let pending_responses = PendingResponses::new(TopicScheme::new(
            vec!["p".to_owned()],
            &DialectSettings::default(),
        ));
        let request_id = Uuid::new_v4();
        let client = ClientId::new("a").unwrap();
        let mut pending = pending_responses.add_request(&client, request_id);
        let pong = |id: Uuid| {
            format!(r#"{{"type":"event","message_id":"x","response_to":"{id}","content":"pong"}}"#)
        };
        for (topic, payload) in [
            ("p/b/control/out", pong(request_id)),
            ("p/a/control/in", pong(request_id)),
            ("p/a/control/out", pong(Uuid::new_v4())),
            ("p/a/control/out", "pong".to_owned()),
            ("elsewhere", pong(request_id)),
        ] {
            assert!(!pending_responses.on_message(&message(topic, &payload)));
            assert_eq!(pending.wait().now_or_never(), None, "{topic} {payload}");
        }
        let response = message("p/a/control/out", &pong(request_id));
        assert!(pending_responses.on_message(&response));
        assert_eq!(pending.wait().now_or_never(), Some(ResponseKind::Success));
        assert!(!pending_responses.on_message(&response));
        drop(pending);
        assert!(pending_responses.requests.by_client.lock().is_empty());
        let client_count = &pending_responses.requests.client_count;
        assert_eq!(client_count.load(Ordering::Acquire), 0);
    }

    #[test]
    fn dropped_request_does_not_end_another_request_of_the_same_client() {
        let topics = TopicScheme::new(vec!["p".to_owned()], &DialectSettings::default());
        let pending_responses = PendingResponses::new(topics);
        let client = ClientId::new("a").unwrap();
        let request_id = Uuid::new_v4();
        let mut pending = pending_responses.add_request(&client, request_id);
        drop(pending_responses.add_request(&client, Uuid::new_v4()));
        let pong = format!(r#"{{"type":"event","response_to":"{request_id}","content":"pong"}}"#);
        assert!(pending_responses.on_message(&message("p/a/control/out", &pong)));
        assert_eq!(pending.wait().now_or_never(), Some(ResponseKind::Success));
    }
}
