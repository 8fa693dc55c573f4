//! A time limit for reading request bodies.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::Request;
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::Sleep;

/// Time limit for receiving a complete request body.
const BODY_READ_TIMEOUT: Duration = Duration::from_secs(10);

/// The request body was not received within [`BODY_READ_TIMEOUT`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the request body was not received within {BODY_READ_TIMEOUT:?}")]
pub(super) struct BodyTimeout;

/// Adds the time limit to the request's body.
///
/// The time limit starts when a read of the body has to wait for the first time. The body is read
/// after authentication, so the time limit does not include the authentication.
pub(super) fn with_body_timeout(request: Request) -> Request {
    if request.body().is_end_stream() {
        return request;
    }
    request.map(|body| {
        Body::new(TimedBody {
            body,
            deadline: None,
        })
    })
}

/// Returns whether [`BodyTimeout`] is the cause of `error`.
pub(super) fn is_body_timeout(error: &(dyn std::error::Error + 'static)) -> bool {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes
        .into_iter()
        .any(<dyn std::error::Error>::is::<BodyTimeout>)
}

/// A request body whose reads fail with [`BodyTimeout`] after the deadline.
struct TimedBody {
    body: Body,
    /// Deadline for the complete body. Set when a read has to wait for the first time.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl HttpBody for TimedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if frame.is_ready() {
            return frame;
        }
        let deadline = self
            .deadline
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(BODY_READ_TIMEOUT)));
        deadline
            .as_mut()
            .poll(context)
            .map(|()| Some(Err(axum::Error::new(BodyTimeout))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
