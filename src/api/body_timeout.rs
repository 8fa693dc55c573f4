//! Bodies of callers that take their time.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::Request;
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::Sleep;

/// A caller that has not sent its body by then is cut off.
const BODY_WITHIN: Duration = Duration::from_secs(10);

/// A body did not come in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the body did not come within {BODY_WITHIN:?}")]
pub(super) struct BodyTimeout;

/// Bounds the time that a body may take. It starts when the body is first read: after the caller has
/// proved who it is.
pub(super) fn timed(request: Request) -> Request {
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

/// Whether that is why a body could not be read.
pub(super) fn is_too_slow(error: &(dyn std::error::Error + 'static)) -> bool {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes
        .into_iter()
        .any(<dyn std::error::Error>::is::<BodyTimeout>)
}

struct TimedBody {
    body: Body,
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
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(BODY_WITHIN)));
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
