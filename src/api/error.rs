//! Errors in one shape: `{"title", "status", "detail"}`, and the place where statuses are decided.

use std::any::Any;
use std::borrow::Cow;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use super::json::Json;
use crate::deliver::SendError;
use crate::store::StoreError;

/// Seconds after which a caller may try again where a part of ours is away.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("5");

/// What a caller is told.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Error)]
pub struct ApiError {
    /// What went wrong.
    #[schema(value_type = String)]
    title: Cow<'static, str>,
    /// The status of the answer.
    #[serde(serialize_with = "as_number")]
    #[schema(value_type = u16, minimum = 400, maximum = 599)]
    status: StatusCode,
    /// Why, for people.
    detail: String,
    /// The message that may or may not arrive.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    id: Option<Uuid>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn as_number<S: serde::Serializer>(status: &StatusCode, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u16(status.as_u16())
}

impl ApiError {
    /// An error of that status.
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
        }
    }

    /// The body cannot be used.
    pub fn bad_json(detail: impl Into<String>) -> Self {
        Self::new(
            StatusCode::BAD_REQUEST,
            "Unable to process json input",
            detail,
        )
    }

    /// Something that we ask is away: try again.
    pub fn unavailable(detail: impl Into<String>) -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "Service unavailable",
            detail,
        )
    }

    /// A message that was not sent, or not surely.
    pub fn not_sent(title: &'static str, error: SendError) -> Self {
        match error {
            SendError::NotConnected => Self::no_connection(),
            SendError::Unavailable { id, problem } => Self {
                id: Some(id),
                ..Self::new(StatusCode::SERVICE_UNAVAILABLE, title, problem)
            },
            SendError::Unsure { id, problem } => Self {
                id: Some(id),
                ..Self::new(
                    StatusCode::GATEWAY_TIMEOUT,
                    title,
                    format!("{problem}; the message may still arrive"),
                )
            },
        }
    }

    /// The status and the title, for the audit.
    pub fn outcome(&self) -> (u16, &str) {
        (self.status.as_u16(), &self.title)
    }

    /// The organisation has no such connection.
    pub fn no_connection() -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "No connection to the rhc client",
            "The organisation has no connection to that client",
        )
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = self.status;
        let mut response = (status, Json(self)).into_response();
        if status == StatusCode::SERVICE_UNAVAILABLE {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, RETRY_AFTER);
        }
        response
    }
}

/// The database could not be asked: never "not there", never an empty list.
impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        tracing::warn!(%error, "a request could not be answered");
        Self::unavailable("The database does not answer; try again")
    }
}

pub(super) async fn no_such_path() -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, "Not found", "There is no such path")
}

pub(super) async fn no_such_method() -> ApiError {
    ApiError::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "Method not allowed",
        "The path does not take this method",
    )
}

/// A bug of ours costs one request, not the process.
#[expect(clippy::needless_pass_by_value, reason = "the layer's signature")]
pub(super) fn panicked(panic: Box<dyn Any + Send + 'static>) -> Response {
    let what = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("unknown");
    tracing::error!(panic = what, "a request handler panicked");
    ApiError::new(
        StatusCode::INTERNAL_SERVER_ERROR,
        "Internal server error",
        "The request could not be handled",
    )
    .into_response()
}
