//! Reads request bodies within a size limit and a time limit.

use std::ops::Deref;
use std::time::Duration;

use axum::extract::{FromRequest, Request};
use axum::http::StatusCode;
use bytes::Bytes;

use super::error::ApiError;

/// Time limit for receiving a complete request body.
const BODY_READ_TIMEOUT: Duration = Duration::from_secs(10);

/// The complete body of a request.
///
/// axum runs the extractor of the body after the extractor that authenticates the caller, so the
/// time limit does not include the authentication.
pub(super) struct RequestBody(Bytes);

impl Deref for RequestBody {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl<S: Send + Sync> FromRequest<S> for RequestBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let read_body = Bytes::from_request(request, state);
        match tokio::time::timeout(BODY_READ_TIMEOUT, read_body).await {
            Ok(Ok(body)) => Ok(Self(body)),
            Ok(Err(rejection)) if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE => {
                Err(ApiError::new(
                    StatusCode::PAYLOAD_TOO_LARGE,
                    "Request body too large",
                    "The request body exceeds the size limit of this service",
                ))
            }
            Ok(Err(_)) => Err(ApiError::invalid_body("The request body could not be read")),
            Err(_) => Err(ApiError::new(
                StatusCode::REQUEST_TIMEOUT,
                "Request timeout",
                "The request body was not received in time",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use futures::stream;
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_body_that_arrives_slowly_is_rejected_after_the_time_limit() {
        // Every chunk arrives within the time limit. The complete body does not.
        let chunks = stream::unfold((), async |()| {
            tokio::time::sleep(BODY_READ_TIMEOUT / 4).await;
            Some((Ok::<_, std::io::Error>("x"), ()))
        });
        let started_at = Instant::now();
        let request = Request::new(Body::from_stream(chunks));
        let error = RequestBody::from_request(request, &()).await.err();
        assert_eq!(
            error.map(|error| error.status_and_title().0),
            Some(StatusCode::REQUEST_TIMEOUT.as_u16())
        );
        assert_eq!(started_at.elapsed(), BODY_READ_TIMEOUT);
    }
}
