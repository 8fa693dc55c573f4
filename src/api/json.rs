//! JSON in and out, as callers know it.

use axum::extract::rejection::BytesRejection;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::body_timeout;
use super::error::ApiError;
use crate::telemetry::request_id;

/// A JSON answer, with the content type that callers are used to.
pub(super) struct Json<T>(pub T);

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        match serde_json::to_vec(&self.0) {
            Ok(body) => {
                let kind = HeaderValue::from_static("application/json; charset=UTF-8");
                ([(header::CONTENT_TYPE, kind)], body).into_response()
            }
            Err(error) => {
                tracing::error!(request_id = request_id::current(), %error, "an answer could not be written as JSON");
                StatusCode::INTERNAL_SERVER_ERROR.into_response()
            }
        }
    }
}

/// Reads a body that must be one JSON object.
pub(super) fn read<T: DeserializeOwned>(
    body: Result<Bytes, BytesRejection>,
) -> Result<T, ApiError> {
    let body = body.map_err(|rejection| match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => ApiError::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "Request body too large",
            "The request body is larger than this service takes",
        ),
        _ if body_timeout::is_too_slow(&rejection) => ApiError::new(
            StatusCode::REQUEST_TIMEOUT,
            "Request timeout",
            "The request body did not come in time",
        ),
        _ => ApiError::bad_json("The request body could not be read"),
    })?;
    let malformed = || ApiError::bad_json("Request body includes malformed json");
    let mut values = serde_json::Deserializer::from_slice(&body).into_iter();
    let first: serde_json::Value = values
        .next()
        .ok_or_else(malformed)?
        .map_err(|_| malformed())?;
    if values.next().is_some() {
        return Err(ApiError::bad_json(
            "Request body must only contain one json object",
        ));
    }
    if first.is_null() {
        return Err(missing_fields());
    }
    if !first.is_object() {
        return Err(malformed());
    }
    serde_json::from_value(first).map_err(|_| malformed())
}

/// A field that callers must send is not there.
pub(super) fn missing_fields() -> ApiError {
    ApiError::bad_json("Request body is missing required fields")
}
