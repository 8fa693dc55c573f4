//! The error response `{"title", "status", "detail"}`, and the mapping from internal errors to HTTP
//! status codes.

use std::any::Any;
use std::borrow::Cow;
use std::time::Duration;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use super::json::Json;
use delivery::SendError;
use domain::MessageState;
use service::request_id;
use store::StoreError;

/// Value of the header `Retry-After` in 503 responses.
const RETRY_AFTER_SECONDS: u16 = 5;

/// Body of an error response.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Error)]
pub struct ApiError {
    /// Kind of error.
    #[schema(value_type = String)]
    title: Cow<'static, str>,
    /// HTTP status code of the response.
    #[serde(serialize_with = "serialize_status")]
    #[schema(value_type = u16, minimum = 400, maximum = 599)]
    status: StatusCode,
    /// Human-readable cause of the error.
    detail: String,
    /// Id of the message that the request tried to send to the client.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    id: Option<Uuid>,
    /// Present state of the message.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false)]
    state: Option<&'static str>,
    /// Value of the response header `Retry-After`. `None` if the response does not have the header.
    #[serde(skip)]
    retry_after_seconds: Option<u16>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn serialize_status<S: serde::Serializer>(
    status: &StatusCode,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.serialize_u16(status.as_u16())
}

impl ApiError {
    /// Creates an error. An error with status 503 has a `Retry-After` header.
    pub fn new(
        status: StatusCode,
        title: impl Into<Cow<'static, str>>,
        detail: impl Into<String>,
    ) -> Self {
        Self {
            title: title.into(),
            status,
            detail: detail.into(),
            id: None,
            state: None,
            retry_after_seconds: (status == StatusCode::SERVICE_UNAVAILABLE)
                .then_some(RETRY_AFTER_SECONDS),
        }
    }

    /// Returns the 400 error for an invalid request body.
    pub fn invalid_body(detail: impl Into<String>) -> Self {
        Self::new(
            StatusCode::BAD_REQUEST,
            "Unable to process json input",
            detail,
        )
    }

    /// Returns the 503 error for a request that depends on an unavailable service.
    pub fn unavailable(detail: impl Into<String>) -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "Service unavailable",
            detail,
        )
    }

    /// Returns the 429 error for an exceeded rate limit. The next request is allowed after
    /// `wait_time`.
    pub fn rate_limited(wait_time: Duration) -> Self {
        Self::too_many_requests(
            wait_time,
            "Rate limit exceeded for this key or organization; \
             retry after the number of seconds in the Retry-After header",
        )
    }

    /// Returns the 429 error for a failed authentication after too many failed authentications.
    pub fn too_many_auth_failures(wait_time: Duration) -> Self {
        Self::too_many_requests(
            wait_time,
            "Authentication failed too often from this address or for this caller; \
             retry after the number of seconds in the Retry-After header",
        )
    }

    /// Returns the 429 error. The next request is allowed after `wait_time`.
    pub fn too_many_requests(wait_time: Duration, detail: &str) -> Self {
        let seconds = wait_time.as_secs_f64().ceil().clamp(1.0, 3600.0);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "between 1 and 3600"
        )]
        let seconds = seconds as u16;
        Self {
            retry_after_seconds: Some(seconds),
            ..Self::new(StatusCode::TOO_MANY_REQUESTS, "Too many requests", detail)
        }
    }

    /// Returns the error for a message that was not sent, or that the broker did not acknowledge.
    pub fn send_failed(title: &'static str, error: SendError) -> Self {
        match error {
            SendError::NotConnected => Self::no_connection(),
            // Another version of the service may have the dialect, so the caller may retry.
            SendError::UnknownDialect { .. } => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, title, error.to_string())
            }
            SendError::Unavailable {
                message_id,
                problem,
            } => Self {
                id: Some(message_id),
                ..Self::new(StatusCode::SERVICE_UNAVAILABLE, title, problem)
            },
            SendError::Unacknowledged {
                message_id,
                problem,
            } => Self {
                id: Some(message_id),
                ..Self::new(
                    StatusCode::GATEWAY_TIMEOUT,
                    title,
                    format!("{problem}; the message may still arrive"),
                )
            },
        }
    }

    /// Returns the 409 error for a message that cannot be cancelled, because it is not queued.
    pub fn not_queued(state: MessageState) -> Self {
        let detail = format!(
            "The message is {}; only a queued message can be cancelled",
            state.as_str()
        );
        Self {
            state: Some(state.as_str()),
            ..Self::new(StatusCode::CONFLICT, "Message is not queued", detail)
        }
    }

    /// Returns the id of the message that the request tried to send.
    pub fn message_id(&self) -> Option<Uuid> {
        self.id
    }

    /// Adds the header `Retry-After`.
    pub fn with_retry_after(self, seconds: u16) -> Self {
        Self {
            retry_after_seconds: Some(seconds),
            ..self
        }
    }

    /// Returns the 504 error for a client that did not respond to a request in time.
    pub fn no_response(title: &'static str, request_id: Uuid, detail: &str) -> Self {
        Self {
            id: Some(request_id),
            ..Self::new(StatusCode::GATEWAY_TIMEOUT, title, detail)
        }
    }

    /// Logs the panic of a request handler, and returns the 500 error for the caller.
    pub fn from_panic(panic: &(dyn Any + Send)) -> Self {
        let panic_message = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("unknown");
        tracing::error!(
            request_id = request_id::current(),
            panic = panic_message,
            "request handler panicked"
        );
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "Internal server error",
            "Unexpected error; the server log has the cause under this request's id",
        )
    }

    /// Returns the status code and the title, for the audit log.
    pub fn status_and_title(&self) -> (u16, &str) {
        (self.status.as_u16(), &self.title)
    }

    /// Returns the 404 error for a client that is not stored, or that does not belong to the
    /// organization. The error is the same in all cases, so it does not reveal the clients of other
    /// organizations.
    pub fn no_client() -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "Client not found",
            "The organization has no client with this id",
        )
    }

    /// Returns the 404 error for a client that is not connected, or that does not belong to the
    /// organization.
    pub fn no_connection() -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "No connection to the rhc client",
            "The organization has no connected client with this id",
        )
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let (status, retry_after_seconds) = (self.status, self.retry_after_seconds);
        let mut response = (status, Json(self)).into_response();
        if let Some(seconds) = retry_after_seconds {
            let headers = response.headers_mut();
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

/// Converts a database error to a 503 error. A database error must never become a 404 error or an
/// empty list, because the caller would conclude that the clients are not connected.
impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        tracing::warn!(
            request_id = request_id::current(), %error,
            "request failed: database unavailable"
        );
        Self::unavailable("The database is unavailable; retry later")
    }
}

pub(super) async fn path_not_found() -> ApiError {
    ApiError::new(
        StatusCode::NOT_FOUND,
        "Not found",
        "Unknown path; openapi.json lists all endpoints",
    )
}

pub(super) async fn method_not_allowed() -> ApiError {
    ApiError::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "Method not allowed",
        "The endpoint does not support this method; openapi.json lists the supported methods",
    )
}
