//! The header `Idempotency-Key`: a repeated request gets the response to the first one, and sends
//! nothing.

use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use sha2::{Digest as _, Sha256};

use super::auth::OrgCaller;
use super::error::ApiError;
use super::send_message::{MessageAccepted, SEND_FAILED_TITLE};
use super::{ApiState, json::Json};
use delivery::SendError;
use domain::{MessageFailure, MessageId, MessageState};
use service::request_id;
use store::{IdempotencyKey, IdempotentRequest, StoredKey, StoredResponse, TrackedMessage};
use uuid::Uuid;

pub(super) const KEY_HEADER: &str = "idempotency-key";
const REPLAYED_HEADER: &str = "idempotent-replayed";
/// Maximum length of a key.
const MAX_KEY_CHARS: usize = 255;
/// Maximum size of a stored response. The responses are small.
const MAX_STORED_BODY_BYTES: usize = 64 * 1024;
/// `Retry-After` of a request whose first request is in progress.
const RETRY_AFTER_SECONDS: u16 = 2;

impl ApiState {
    /// Returns the request with its key. Returns `None` if the request has no key.
    pub(super) fn idempotent_request(
        &self,
        headers: &HeaderMap,
        caller: &OrgCaller,
        (method, path, body): (&Method, &str, &[u8]),
    ) -> Result<Option<IdempotentRequest>, ApiError> {
        let Some(key) = parse_key(headers)? else {
            return Ok(None);
        };
        let mut hash = Sha256::new();
        hash.update(format!("{method} {path}\n"));
        hash.update(body);
        Ok(Some(IdempotentRequest {
            key: IdempotencyKey {
                org: caller.org_id.clone(),
                caller: caller.unique_name.clone(),
                key,
            },
            request_hash: format!("{:x}", hash.finalize()),
            max_duration: self.request_timeout,
        }))
    }

    /// Returns the response to an earlier request with the same key. Returns `None` if the request is the
    /// first one, or if the earlier request sent nothing.
    pub(super) async fn replayed_response(
        &self,
        request: &IdempotentRequest,
    ) -> Result<Option<Response>, ApiError> {
        let Some(stored) = self.idempotency.find_key(&request.key).await? else {
            return Ok(None);
        };
        if stored.request_hash != request.request_hash {
            return Err(ApiError::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "Idempotency-Key is already used",
                "Another request of this caller has the same Idempotency-Key; use a new key",
            ));
        }
        if let Some(response) = stored.response {
            return Ok(Some(replay(response)));
        }
        if stored.is_in_progress {
            return Err(in_progress_error());
        }
        self.response_from_message(request, &stored).await
    }

    /// Returns the response to a request whose process or caller ended before the response was stored.
    async fn response_from_message(
        &self,
        request: &IdempotentRequest,
        stored: &StoredKey,
    ) -> Result<Option<Response>, ApiError> {
        let id = &stored.message_id;
        let message = self.messages.find_message(&request.key.org, id).await?;
        let response = message.as_ref().and_then(response_to_message);
        let Some(response) = response else {
            // The message was not sent, or its record is deleted.
            self.idempotency.delete_key(&request.key, id).await?;
            return Ok(None);
        };
        let response = stored_response(response).await;
        if let Some(response) = &response {
            let stored = self.idempotency.store_response(&request.key, id, response);
            stored.await?;
        }
        Ok(response.map(replay))
    }

    /// Stores the response to the first request with a key, or deletes the key if nothing was sent. Returns
    /// the response for the caller.
    pub(super) async fn store_first_response(
        &self,
        request: &IdempotentRequest,
        result: Result<(StatusCode, Json<MessageAccepted>), ApiError>,
    ) -> Response {
        let id = match &result {
            Ok((_, Json(accepted))) => Some(accepted.id()),
            Err(error) => error.message_id(),
        };
        let response = result.into_response();
        let (parts, body) = response.into_parts();
        let body = to_bytes(body, MAX_STORED_BODY_BYTES)
            .await
            .unwrap_or_default();
        let is_stored = parts.status.is_success() || parts.status == StatusCode::GATEWAY_TIMEOUT;
        let id = match id {
            Some(id) => Some(MessageId::from(id)),
            None => self.failed_message(request).await,
        };
        if let Some(id) = id {
            let key = &request.key;
            let result = if is_stored {
                let response = StoredResponse {
                    status: parts.status.as_u16(),
                    body: String::from_utf8_lossy(&body).into_owned(),
                };
                self.idempotency.store_response(key, &id, &response).await
            } else {
                self.idempotency.delete_key(key, &id).await
            };
            // The message is sent, so the response must not become an error. A repeated request gets the
            // response from the state of the message.
            if let Err(error) = result {
                tracing::warn!(
                    request_id = request_id::current(), %error,
                    "failed to store the response to a request with an idempotency key"
                );
            }
        }
        Response::from_parts(parts, Body::from(body))
    }
}

impl ApiState {
    /// Returns the message of the request if it failed because the client is not connected. The response
    /// to such a request does not contain the id.
    async fn failed_message(&self, request: &IdempotentRequest) -> Option<MessageId> {
        let stored = self.idempotency.find_key(&request.key).await.ok()??;
        let id = stored.message_id;
        let message = self
            .messages
            .find_message(&request.key.org, &id)
            .await
            .ok()??;
        let not_connected = MessageFailure::NotConnected.as_str();
        (message.reason.as_deref() == Some(not_connected)).then_some(id)
    }
}

/// Returns the key in the header. Returns `None` if the header is missing.
fn parse_key(headers: &HeaderMap) -> Result<Option<String>, ApiError> {
    let mut values = headers.get_all(KEY_HEADER).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    let bytes = value.as_bytes();
    let is_visible_ascii = bytes.iter().all(u8::is_ascii_graphic);
    if values.next().is_some()
        || bytes.is_empty()
        || bytes.len() > MAX_KEY_CHARS
        || !is_visible_ascii
    {
        return Err(ApiError::new(
            StatusCode::BAD_REQUEST,
            "Invalid Idempotency-Key",
            "The header Idempotency-Key must occur once, with 1 to 255 visible ASCII characters",
        ));
    }
    Ok(Some(String::from_utf8_lossy(bytes).into_owned()))
}

/// Returns the 409 error for a request whose first request is in progress.
pub(super) fn in_progress_error() -> ApiError {
    ApiError::new(
        StatusCode::CONFLICT,
        "Request is in progress",
        "An earlier request with the same Idempotency-Key is in progress; retry later",
    )
    .with_retry_after(RETRY_AFTER_SECONDS)
}

/// Returns the response that a request for the message would have got. Returns `None` if nothing was sent.
fn response_to_message(message: &TrackedMessage) -> Option<Response> {
    let id = Uuid::try_parse(message.id.as_str()).ok()?;
    let timeout = MessageFailure::BrokerTimeout.as_str();
    let is_unacknowledged = match message.state {
        MessageState::Acknowledged | MessageState::Answered | MessageState::Rejected => false,
        MessageState::Sending => true,
        MessageState::Failed if message.reason.as_deref() == Some(timeout) => true,
        MessageState::Failed
        | MessageState::Queued
        | MessageState::Expired
        | MessageState::Cancelled => return None,
    };
    if is_unacknowledged {
        let error = SendError::Unacknowledged {
            message_id: id,
            problem: "the broker did not acknowledge the message in time".to_owned(),
        };
        return Some(ApiError::send_failed(SEND_FAILED_TITLE, error).into_response());
    }
    Some((StatusCode::CREATED, Json(MessageAccepted::new(id))).into_response())
}

async fn stored_response(response: Response) -> Option<StoredResponse> {
    let (parts, body) = response.into_parts();
    let body = to_bytes(body, MAX_STORED_BODY_BYTES).await.ok()?;
    Some(StoredResponse {
        status: parts.status.as_u16(),
        body: String::from_utf8(body.into()).ok()?,
    })
}

/// Returns a stored response to a repeated request.
fn replay(response: StoredResponse) -> Response {
    let status = StatusCode::from_u16(response.status).unwrap_or(StatusCode::OK);
    let headers = [
        (
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json; charset=UTF-8"),
        ),
        (
            header::HeaderName::from_static(REPLAYED_HEADER),
            HeaderValue::from_static("true"),
        ),
    ];
    (status, headers, response.body).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_has_1_to_255_visible_characters() {
        let parse = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(
                    KEY_HEADER,
                    HeaderValue::from_bytes(value.as_bytes()).unwrap(),
                );
            }
            parse_key(&headers)
        };
        assert_eq!(parse(&[]).unwrap(), None);
        assert_eq!(parse(&["a"]).unwrap().as_deref(), Some("a"));
        let longest = "~".repeat(255);
        assert_eq!(parse(&[&longest]).unwrap(), Some(longest.clone()));
        let too_long = format!("{longest}x");
        for invalid in [
            &[""][..],
            &["a b"],
            &["é"],
            &["a\t"],
            &["a", "a"],
            &[&too_long],
        ] {
            assert!(parse(invalid).is_err(), "{invalid:?}");
        }
    }
}
