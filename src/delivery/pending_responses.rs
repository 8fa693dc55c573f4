//! Matches messages from clients with the requests that wait for a response.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::sync::oneshot;
use uuid::Uuid;

use crate::broker::{MessageSink, PendingWrite};
use crate::domain::ClientId;
use crate::protocol::{
    self, ClientMessage, ClientResponse, Direction, InboundMessage, TopicScheme,
};

/// Requests that wait for a response. Clones share the same requests.
#[derive(Clone)]
pub struct PendingResponses {
    requests: Arc<PendingRequests>,
    topics: TopicScheme,
}

/// A client and the id of a request that was sent to it. A response must match both, so a client
/// cannot respond to another client's request.
type RequestKey = (ClientId, Uuid);

#[derive(Default)]
struct PendingRequests {
    by_key: Mutex<HashMap<RequestKey, oneshot::Sender<ResponseKind>>>,
    /// Number of pending requests. While it is 0, which is usual, messages are not decoded.
    count: AtomicUsize,
}

/// Whether the client could handle a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ResponseKind {
    /// The client sent a pong or data.
    Success,
    /// The client sent an error with this text.
    Error(String),
}

/// A request that waits for its response. Dropping it ends the wait.
pub(super) struct PendingResponse {
    requests: Arc<PendingRequests>,
    key: RequestKey,
    receiver: oneshot::Receiver<ResponseKind>,
}

impl PendingResponses {
    /// Creates an empty set of pending requests.
    #[must_use]
    pub fn new(topics: TopicScheme) -> Self {
        Self {
            requests: Arc::default(),
            topics,
        }
    }

    /// Adds a request that waits for a response.
    pub(super) fn add(&self, client: &ClientId, id: Uuid) -> PendingResponse {
        let (sender, receiver) = oneshot::channel();
        let key = (client.clone(), id);
        let mut by_key = self.requests.by_key.lock();
        by_key.insert(key.clone(), sender);
        self.requests.count.store(by_key.len(), Ordering::Release);
        drop(by_key);
        PendingResponse {
            requests: self.requests.clone(),
            key,
            receiver,
        }
    }

    /// Checks whether a message from a client is the response to a pending request. If so,
    /// completes the request.
    pub fn on_message(&self, message: &InboundMessage) {
        if self.requests.count.load(Ordering::Acquire) == 0 || message.retained {
            return;
        }
        let Some(topic) = self.topics.parse(&message.topic) else {
            return;
        };
        if topic.channel.direction() != Direction::FromClient {
            return;
        }
        let Ok(ClientMessage::Response(response)) = protocol::decode(topic.channel, message) else {
            return;
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
        let Some(id) = response_to.and_then(|id| Uuid::parse_str(id.as_str()).ok()) else {
            return;
        };
        let sender = self.requests.by_key.lock().remove(&(topic.client, id));
        if let Some(sender) = sender {
            let _ = sender.send(kind);
        }
    }
}

impl PendingResponse {
    /// Waits for the response. Must not be called again after it has returned.
    pub async fn wait(&mut self) -> ResponseKind {
        match (&mut self.receiver).await {
            Ok(kind) => kind,
            // The sender is dropped only after it has sent a response.
            Err(_) => std::future::pending().await,
        }
    }
}

impl Drop for PendingResponse {
    fn drop(&mut self) {
        let mut by_key = self.requests.by_key.lock();
        by_key.remove(&self.key);
        self.requests.count.store(by_key.len(), Ordering::Release);
    }
}

/// Wraps the embedded broker's message sink and passes each message to [`PendingResponses`] too.
pub struct ResponseTap<S> {
    sink: S,
    pending_responses: PendingResponses,
}

impl<S> ResponseTap<S> {
    /// Wraps a message sink.
    #[must_use]
    pub fn new(sink: S, pending_responses: PendingResponses) -> Self {
        Self {
            sink,
            pending_responses,
        }
    }
}

impl<S: MessageSink> MessageSink for ResponseTap<S> {
    fn message_received(&self, message: InboundMessage) -> PendingWrite {
        self.pending_responses.on_message(&message);
        self.sink.message_received(message)
    }

    fn connection_closed(&self, client: ClientId) -> PendingWrite {
        self.sink.connection_closed(client)
    }

    fn is_overloaded(&self) -> bool {
        self.sink.is_overloaded()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use futures::FutureExt as _;

    use super::*;
    use crate::domain::Timestamp;
    use crate::protocol::HandshakeSegments;

    fn message(topic: &str, payload: &str) -> InboundMessage {
        InboundMessage {
            topic: topic.to_owned(),
            payload: Bytes::from(payload.to_owned()),
            retained: false,
            operator_replay: false,
            received_at: Timestamp::UNIX_EPOCH,
            truncated: None,
        }
    }

    #[test]
    fn response_must_come_from_the_requested_client_and_name_the_request() {
        let pending_responses = PendingResponses::new(TopicScheme::new(
            vec!["p".to_owned()],
            HandshakeSegments::default(),
        ));
        let id = Uuid::new_v4();
        let mut pending = pending_responses.add(&ClientId::new("a").unwrap(), id);
        let pong = |to: Uuid| {
            format!(r#"{{"type":"event","message_id":"x","response_to":"{to}","content":"pong"}}"#)
        };
        for (topic, payload) in [
            ("p/b/control/out", pong(id)),
            ("p/a/control/in", pong(id)),
            ("p/a/control/out", pong(Uuid::new_v4())),
            ("p/a/control/out", "pong".to_owned()),
            ("elsewhere", pong(id)),
        ] {
            pending_responses.on_message(&message(topic, &payload));
            assert_eq!(pending.wait().now_or_never(), None, "{topic} {payload}");
        }
        pending_responses.on_message(&message("p/a/control/out", &pong(id)));
        assert_eq!(pending.wait().now_or_never(), Some(ResponseKind::Success));
        drop(pending);
        assert!(pending_responses.requests.by_key.lock().is_empty());
        assert_eq!(pending_responses.requests.count.load(Ordering::Acquire), 0);
    }
}
