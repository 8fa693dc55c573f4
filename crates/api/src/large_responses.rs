//! Responses whose size depends on the data of clients. A response is collected in memory up to a
//! limit, and the number of large responses in memory is limited.
//!
//! The database is read before a response is sent, so a caller that reads slowly does not occupy a
//! database connection.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::json::Json;
use super::settings::ApiSettings;
use service::TaskGroup;

/// A response up to this size is small. Small responses need no permit.
const MAX_SMALL_BYTES: usize = 256 * 1024;
/// Size of the parts in which a response is sent. A part is larger if one element is larger.
const PART_BYTES: usize = 64 * 1024;
/// Maximum duration of sending a large response.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum number of large responses that are read from the database at the same time. Other requests
/// can use the remaining database connections. SQLite has four connections for reading.
const MAX_CONCURRENT_READS: usize = 2;

/// Limits the memory that large responses use.
pub(super) struct LargeResponses {
    permits: Permits,
    max_bytes: usize,
    tasks: TaskGroup,
}

#[derive(Clone)]
struct Permits {
    responses: Arc<Semaphore>,
    reads: Arc<Semaphore>,
}

impl Permits {
    fn new(max_responses: usize) -> Self {
        Self {
            responses: Arc::new(Semaphore::new(max_responses)),
            reads: Arc::new(Semaphore::new(MAX_CONCURRENT_READS)),
        }
    }

    async fn acquire(&self) -> Option<LargeResponsePermit> {
        // The semaphores are never closed, so `acquire_owned` does not fail.
        let response = self.responses.clone().acquire_owned().await.ok()?;
        let read = self.reads.clone().acquire_owned().await.ok()?;
        Some(LargeResponsePermit { response, read })
    }

    fn try_acquire(&self) -> Option<LargeResponsePermit> {
        let response = self.responses.clone().try_acquire_owned().ok()?;
        let read = self.reads.clone().try_acquire_owned().ok()?;
        Some(LargeResponsePermit { response, read })
    }
}

/// Permission to read a large response and to hold it in memory.
pub(super) struct LargeResponsePermit {
    /// Held until the response is sent.
    response: OwnedSemaphorePermit,
    /// Held until the response is read from the database.
    read: OwnedSemaphorePermit,
}

impl LargeResponses {
    /// Creates the limits. Large responses are sent by tasks of the group `tasks`.
    pub fn new(config: &ApiSettings, tasks: TaskGroup) -> Self {
        Self {
            permits: Permits::new(config.max_large_responses),
            max_bytes: config.max_response_bytes,
            tasks,
        }
    }

    /// Waits until there are few enough large responses. A caller that waits must hold neither a
    /// part of its response nor a database connection.
    pub async fn permit(&self) -> Option<LargeResponsePermit> {
        self.permits.acquire().await
    }

    /// Returns an empty list of elements. Without a permit, the list can become large only if no
    /// other request waits for a permit.
    pub fn elements(&self, permit: Option<LargeResponsePermit>) -> Elements {
        Elements {
            parts: Vec::new(),
            last_part: Vec::new(),
            element: Vec::new(),
            byte_count: 0,
            max_bytes: self.max_bytes,
            permits: self.permits.clone(),
            permit,
        }
    }

    /// Returns a JSON response that consists of `head`, the elements separated by commas, and
    /// `tail`.
    pub fn respond(&self, head: Vec<u8>, elements: Elements, tail: &'static [u8]) -> Response {
        let (mut parts, permit) = elements.into_parts(head);
        parts.push(Bytes::from_static(tail));
        if permit.is_none() {
            return json_response(Body::from(parts.concat()));
        }
        let byte_count = parts.iter().map(Bytes::len).sum::<usize>();
        let send = async move |sender: PartSender| sender.send_all(parts).await;
        self.send_in_task(Some(byte_count as u64), permit, send)
    }

    /// Returns a JSON response with a value that was read with a permit, or that is small.
    pub fn respond_json(
        &self,
        value: &impl Serialize,
        permit: Option<LargeResponsePermit>,
    ) -> Response {
        let mut elements = self.elements(permit);
        match elements.push(value) {
            Ok(()) => self.respond(Vec::new(), elements, b""),
            // The value is larger than expected. It is sent without a permit, because it is already
            // in memory.
            Err(_) => Json(value).into_response(),
        }
    }

    /// Returns a JSON response that consists of `head`, the elements separated by commas, and the
    /// parts that `send_rest` sends. If `send_rest` does not finish the response, the connection of
    /// the caller is closed.
    pub fn respond_in_parts<F>(
        &self,
        head: Vec<u8>,
        first_elements: Elements,
        send_rest: impl FnOnce(PartSender) -> F + Send + 'static,
    ) -> Response
    where
        F: Future<Output = Result<(), ResponseAborted>> + Send + 'static,
    {
        let (parts, permit) = first_elements.into_parts(head);
        let send = async move |sender: PartSender| {
            sender.send_all(parts).await?;
            send_rest(sender).await
        };
        self.send_in_task(None, permit, send)
    }

    /// Sends the parts of a response in a separate task. The task ends after [`SEND_TIMEOUT`], even
    /// if the caller reads slowly. The data and the permit are then released.
    fn send_in_task<F>(
        &self,
        byte_count: Option<u64>,
        permit: Option<OwnedSemaphorePermit>,
        send: impl FnOnce(PartSender) -> F,
    ) -> Response
    where
        F: Future<Output = Result<(), ResponseAborted>> + Send + 'static,
    {
        let (sender, receiver) = mpsc::channel(1);
        let send = tokio::time::timeout(SEND_TIMEOUT, send(PartSender(sender)));
        self.tasks.spawn_item("large_response", async move {
            if !matches!(send.await, Ok(Ok(()))) {
                tracing::debug!("response aborted: the caller closed the connection or is slow");
            }
            drop(permit);
        });
        json_response(Body::new(PartsBody {
            receiver,
            remaining_bytes: byte_count,
        }))
    }
}

fn json_response(body: Body) -> Response {
    let content_type = HeaderValue::from_static("application/json; charset=UTF-8");
    ([(header::CONTENT_TYPE, content_type)], body).into_response()
}

/// The reason why a list of [`Elements`] does not accept another element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rejected {
    /// The list has reached the size limit of a response.
    Full,
    /// The list has reached the size of a small response, and there are too many large responses.
    /// The request must drop the list, wait for a permit and start again.
    PermitNeeded,
}

/// Serialized elements of a JSON array, without the brackets.
pub(super) struct Elements {
    parts: Vec<Bytes>,
    /// The part to which elements are added.
    last_part: Vec<u8>,
    /// Buffer of the element that is being added.
    element: Vec<u8>,
    byte_count: usize,
    max_bytes: usize,
    permits: Permits,
    permit: Option<LargeResponsePermit>,
}

impl Elements {
    /// Adds an element. The first element is always accepted, even if it alone exceeds the limit.
    pub fn push(&mut self, element: &impl Serialize) -> Result<(), Rejected> {
        let mut json = std::mem::take(&mut self.element);
        json.clear();
        if let Err(error) = serde_json::to_writer(&mut json, element) {
            // The elements consist of strings and JSON values, which can always be serialized.
            tracing::error!(%error, "failed to serialize an element of a response");
        }
        let pushed = self.push_json(&json);
        self.element = json;
        pushed
    }

    /// Adds an element that is already serialized.
    pub fn push_json(&mut self, element: &[u8]) -> Result<(), Rejected> {
        let is_first = self.byte_count == 0;
        let byte_count = self.byte_count + usize::from(!is_first) + element.len();
        if byte_count > self.max_bytes && !is_first {
            return Err(Rejected::Full);
        }
        if byte_count > MAX_SMALL_BYTES && self.permit.is_none() {
            let permit = self.permits.try_acquire();
            self.permit = Some(permit.ok_or(Rejected::PermitNeeded)?);
        }
        if !self.last_part.is_empty() && self.last_part.len() + element.len() > PART_BYTES {
            let part = std::mem::take(&mut self.last_part);
            self.parts.push(part.into_boxed_slice().into());
        }
        if !is_first {
            self.last_part.push(b',');
        }
        self.last_part.extend_from_slice(element);
        self.byte_count = byte_count;
        Ok(())
    }

    /// Returns the parts of the response, and a permit if the response is large.
    fn into_parts(self, head: Vec<u8>) -> (Vec<Bytes>, Option<OwnedSemaphorePermit>) {
        let mut parts = vec![head.into()];
        parts.extend(self.parts);
        if !self.last_part.is_empty() {
            parts.push(self.last_part.into());
        }
        let permit = self.permit.filter(|_| self.byte_count > MAX_SMALL_BYTES);
        let response_permit = permit.map(|LargeResponsePermit { response, read }| {
            drop(read);
            response
        });
        (parts, response_permit)
    }
}

/// A response cannot be sent completely: the caller closed the connection, or the rest of the
/// response cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("the response was aborted")]
pub(super) struct ResponseAborted;

/// Sends the parts of a response.
pub(super) struct PartSender(mpsc::Sender<Bytes>);

impl PartSender {
    /// Sends a part, which must not be empty. Waits until the caller has read earlier parts.
    pub async fn send(&self, part: impl Into<Bytes>) -> Result<(), ResponseAborted> {
        self.0.send(part.into()).await.map_err(|_| ResponseAborted)
    }

    async fn send_all(&self, parts: Vec<Bytes>) -> Result<(), ResponseAborted> {
        for mut part in parts {
            while !part.is_empty() {
                let piece = part.split_to(part.len().min(PART_BYTES));
                self.send(piece).await?;
            }
        }
        Ok(())
    }

    /// Marks a response of unknown size as complete.
    pub async fn finish(self) -> Result<(), ResponseAborted> {
        // An empty part marks the end, because the channel is also closed if the sender is aborted.
        self.send(Bytes::new()).await
    }
}

/// The body of a response whose parts are sent by a [`PartSender`].
struct PartsBody {
    receiver: mpsc::Receiver<Bytes>,
    /// Number of bytes that are not yet sent. `None` if the size of the response is unknown.
    remaining_bytes: Option<u64>,
}

impl HttpBody for PartsBody {
    type Data = Bytes;
    type Error = ResponseAborted;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ResponseAborted>>> {
        if self.remaining_bytes == Some(0) {
            return Poll::Ready(None);
        }
        let Some(part) = ready!(self.receiver.poll_recv(context)) else {
            return Poll::Ready(Some(Err(ResponseAborted)));
        };
        if part.is_empty() {
            return Poll::Ready(None);
        }
        if let Some(remaining_bytes) = &mut self.remaining_bytes {
            *remaining_bytes = remaining_bytes.saturating_sub(part.len() as u64);
        }
        Poll::Ready(Some(Ok(Frame::data(part))))
    }

    fn size_hint(&self) -> SizeHint {
        self.remaining_bytes
            .map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

#[cfg(test)]
mod tests {
    use axum::body::to_bytes;
    use serde_json::{Value, json};

    use super::*;

    const MAX_BYTES: usize = 1024 * 1024;

    fn large_responses(count: usize) -> LargeResponses {
        LargeResponses {
            permits: Permits::new(count),
            max_bytes: MAX_BYTES,
            tasks: TaskGroup::new(),
        }
    }

    /// Adds elements with 1,000 bytes until the list is full or a permit is needed.
    fn fill(elements: &mut Elements) -> Rejected {
        loop {
            if let Err(rejected) = elements.push(&"x".repeat(997)) {
                return rejected;
            }
        }
    }

    fn respond(limits: &LargeResponses, elements: Elements) -> Body {
        let response = limits.respond(b"[".to_vec(), elements, b"]");
        response.into_body()
    }

    async fn read(body: Body) -> Value {
        let body = to_bytes(body, usize::MAX).await.unwrap();
        serde_json::from_slice(&body).unwrap()
    }

    #[tokio::test]
    async fn elements_are_accepted_up_to_the_limit_and_the_first_element_always() {
        let limits = large_responses(1);
        let mut elements = limits.elements(None);
        assert_eq!(fill(&mut elements), Rejected::Full);
        let body = respond(&limits, elements);
        let size = body.size_hint().exact().unwrap();
        assert!(size <= MAX_BYTES as u64 + 2 && size > MAX_BYTES as u64 - 2000);
        assert_eq!(read(body).await.as_array().unwrap().len(), MAX_BYTES / 1000);
        let mut elements = limits.elements(limits.permit().await);
        let large = "x".repeat(2 * MAX_BYTES);
        assert_eq!(elements.push(&large), Ok(()));
        assert_eq!(elements.push(&1), Err(Rejected::Full));
        assert_eq!(read(respond(&limits, elements)).await, json!([large]));
    }

    #[tokio::test]
    async fn only_large_responses_need_a_permit() {
        let limits = large_responses(1);
        let permit = limits.permit().await;
        let mut elements = limits.elements(None);
        assert_eq!(fill(&mut elements), Rejected::PermitNeeded);
        let small = respond(&limits, elements);
        let mut elements = limits.elements(permit);
        assert_eq!(fill(&mut elements), Rejected::Full);
        let unread = respond(&limits, elements);
        assert!(read(small).await.as_array().unwrap().len() > 200);
        assert_eq!(limits.permits.responses.available_permits(), 0);
        drop(unread);
        assert!(limits.permit().await.is_some());
    }

    #[tokio::test]
    async fn permit_of_a_small_response_is_released_at_once() {
        let limits = large_responses(1);
        let mut elements = limits.elements(limits.permit().await);
        elements.push(&1).unwrap();
        let _unread = respond(&limits, elements);
        assert_eq!(limits.permits.responses.available_permits(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn large_response_that_is_not_read_in_time_is_aborted() {
        let limits = large_responses(1);
        let mut elements = limits.elements(None);
        fill(&mut elements);
        let body = respond(&limits, elements);
        let permit = tokio::time::timeout(SEND_TIMEOUT * 2, limits.permit()).await;
        assert!(permit.unwrap().is_some());
        assert!(to_bytes(body, usize::MAX).await.is_err());
    }

    #[tokio::test]
    async fn response_in_parts_is_aborted_if_it_is_not_finished() {
        for is_finished in [true, false] {
            let limits = large_responses(1);
            let mut elements = limits.elements(None);
            elements.push(&1).unwrap();
            let send_rest = async move |sender: PartSender| {
                sender.send(",2]").await?;
                if is_finished {
                    sender.finish().await?;
                }
                Ok(())
            };
            let response = limits.respond_in_parts(b"[".to_vec(), elements, send_rest);
            let body = to_bytes(response.into_body(), usize::MAX).await;
            assert_eq!(body.is_ok(), is_finished);
            if let Ok(body) = body {
                assert_eq!(&body[..], b"[1,2]");
            }
        }
    }
}
