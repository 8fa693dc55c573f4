//! Errors in one shape: `{"title", "status", "detail"}`, and the place where statuses are decided.

use std::any::Any;
use std::borrow::Cow;
use std::time::Duration;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use super::json::Json;
use crate::delivery::SendError;
use crate::store::StoreError;
use crate::telemetry::request_id;

/// Seconds after which a caller may try again where a part of ours is away.
const RETRY_AFTER: u16 = 5;

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
    /// Seconds, in the header.
    #[serde(skip)]
    retry_after: Option<u16>,
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
            retry_after: (status == StatusCode::SERVICE_UNAVAILABLE).then_some(RETRY_AFTER),
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

    /// A limit is used up, for so long.
    pub fn too_many(wait: Duration) -> Self {
        let seconds = wait.as_secs_f64().ceil().clamp(1.0, 3600.0);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "between 1 and 3600"
        )]
        let seconds = seconds as u16;
        Self {
            retry_after: Some(seconds),
            ..Self::new(
                StatusCode::TOO_MANY_REQUESTS,
                "Too many requests",
                "The limit of requests for this key or organisation is used up; try again later",
            )
        }
    }

    /// A message that was not sent, or not surely.
    pub fn not_sent(title: &'static str, error: SendError) -> Self {
        match error {
            SendError::NotConnected => Self::no_connection(),
            SendError::Unavailable { id, problem } => Self {
                id: Some(id),
                ..Self::new(StatusCode::SERVICE_UNAVAILABLE, title, problem)
            },
            SendError::Unacknowledged { id, problem } => Self {
                id: Some(id),
                ..Self::new(
                    StatusCode::GATEWAY_TIMEOUT,
                    title,
                    format!("{problem}; the message may still arrive"),
                )
            },
        }
    }

    /// The question was sent and nobody answered.
    pub fn no_answer(title: &'static str, id: Uuid, detail: &str) -> Self {
        Self {
            id: Some(id),
            ..Self::new(StatusCode::GATEWAY_TIMEOUT, title, detail)
        }
    }

    /// A bug of ours.
    pub fn panicked(panic: &(dyn Any + Send)) -> Self {
        let what = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("unknown");
        tracing::error!(
            request_id = request_id::current(),
            panic = what,
            "a request handler panicked"
        );
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "Internal server error",
            "The request could not be handled",
        )
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
        let (status, retry_after) = (self.status, self.retry_after);
        let mut response = (status, Json(self)).into_response();
        if let Some(seconds) = retry_after {
            let headers = response.headers_mut();
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

/// The database could not be asked: never "not there", never an empty list.
impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        tracing::warn!(request_id = request_id::current(), %error, "a request could not be answered");
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
