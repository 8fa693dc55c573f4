//! Who waits for which client's answer.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::sync::oneshot;
use uuid::Uuid;

use crate::broker::{MessageSink, Receipt};
use crate::domain::ClientId;
use crate::protocol::{
    self, ClientMessage, ClientResponse, Direction, InboundMessage, TopicScheme,
};

/// PendingResponses that are waited for, by the client that owes them: nobody answers for another. A clone is
/// the same.
#[derive(Clone)]
pub struct PendingResponses {
    waiting: Arc<Waiting>,
    topics: TopicScheme,
}

#[derive(Default)]
struct Waiting {
    by_question: Mutex<HashMap<(ClientId, Uuid), oneshot::Sender<ResponseKind>>>,
    /// Nearly always 0: then nothing is looked at.
    count: AtomicUsize,
}

/// What a client answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ResponseKind {
    /// It could not handle the question, and says why.
    pub refusal: Option<String>,
}

/// An answer that is waited for, for as long as this is held.
pub(super) struct PendingResponse {
    waiting: Arc<Waiting>,
    question: (ClientId, Uuid),
    heard: oneshot::Receiver<ResponseKind>,
}

impl PendingResponses {
    /// Nobody waits yet.
    #[must_use]
    pub fn new(topics: TopicScheme) -> Self {
        Self {
            waiting: Arc::default(),
            topics,
        }
    }

    pub(super) fn expect(&self, client: &ClientId, id: Uuid) -> PendingResponse {
        let (sender, heard) = oneshot::channel();
        let question = (client.clone(), id);
        let mut by_question = self.waiting.by_question.lock();
        by_question.insert(question.clone(), sender);
        self.waiting
            .count
            .store(by_question.len(), Ordering::Release);
        drop(by_question);
        PendingResponse {
            waiting: self.waiting.clone(),
            question,
            heard,
        }
    }

    /// A message of a client came by. If it is an answer that somebody waits for, they have it.
    pub fn hear(&self, message: &InboundMessage) {
        if self.waiting.count.load(Ordering::Acquire) == 0 || message.replayed {
            return;
        }
        let Some(topic) = self.topics.parse(&message.topic) else {
            return;
        };
        if topic.route.direction() != Direction::FromClient {
            return;
        }
        let Ok(ClientMessage::Response(answer)) = protocol::read(topic.route, message) else {
            return;
        };
        let (to, refusal) = match answer {
            ClientResponse::Pong { to } | ClientResponse::Data { to, .. } => (to, None),
            ClientResponse::Error { to, details } => (to, Some(details)),
        };
        let Some(id) = to.and_then(|to| Uuid::parse_str(to.as_str()).ok()) else {
            return;
        };
        let waiting = self.waiting.by_question.lock().remove(&(topic.client, id));
        if let Some(waiting) = waiting {
            let _ = waiting.send(ResponseKind { refusal });
        }
    }
}

impl PendingResponse {
    /// Waits for it.
    pub async fn heard(&mut self) -> ResponseKind {
        match (&mut self.heard).await {
            Ok(heard) => heard,
            // Only asked again after it was heard.
            Err(_) => std::future::pending().await,
        }
    }
}

impl Drop for PendingResponse {
    fn drop(&mut self) {
        let mut by_question = self.waiting.by_question.lock();
        by_question.remove(&self.question);
        self.waiting
            .count
            .store(by_question.len(), Ordering::Release);
    }
}

/// The embedded broker's intake, with an ear on the answers that pass.
pub struct ResponseTap<I> {
    intake: I,
    answers: PendingResponses,
}

impl<I> ResponseTap<I> {
    /// Listens to what this intake takes.
    #[must_use]
    pub fn new(intake: I, answers: PendingResponses) -> Self {
        Self { intake, answers }
    }
}

impl<I: MessageSink> MessageSink for ResponseTap<I> {
    fn message(&self, message: InboundMessage) -> Receipt {
        self.answers.hear(&message);
        self.intake.message(message)
    }

    fn ended(&self, client: ClientId) -> Receipt {
        self.intake.ended(client)
    }

    fn is_full(&self) -> bool {
        self.intake.is_full()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use futures::FutureExt as _;

    use super::*;
    use crate::domain::Timestamp;
    use crate::protocol::HandshakeSegments;

    fn said(topic: &str, payload: &str) -> InboundMessage {
        InboundMessage {
            topic: topic.to_owned(),
            payload: Bytes::from(payload.to_owned()),
            replayed: false,
            again: false,
            received: Timestamp::UNIX_EPOCH,
            cut: None,
        }
    }

    #[test]
    fn only_the_client_that_was_asked_can_answer_and_only_that_question() {
        let answers = PendingResponses::new(TopicScheme::new(
            vec!["p".to_owned()],
            HandshakeSegments::default(),
        ));
        let id = Uuid::new_v4();
        let mut expected = answers.expect(&ClientId::new("a").unwrap(), id);
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
            answers.hear(&said(topic, &payload));
            assert_eq!(expected.heard().now_or_never(), None, "{topic} {payload}");
        }
        answers.hear(&said("p/a/control/out", &pong(id)));
        let heard = ResponseKind { refusal: None };
        assert_eq!(expected.heard().now_or_never(), Some(heard));
        drop(expected);
        assert!(answers.waiting.by_question.lock().is_empty());
        assert_eq!(answers.waiting.count.load(Ordering::Acquire), 0);
    }
}
