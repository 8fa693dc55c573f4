//! JSON request and response bodies.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::error::ApiError;
use super::request_body::RequestBody;
use service::request_id;

/// A JSON response with the content type `application/json; charset=UTF-8`.
///
/// Existing callers require the charset, and `axum::Json` omits it.
pub(super) struct Json<T>(pub T);

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        match serde_json::to_vec(&self.0) {
            Ok(body) => {
                let content_type = HeaderValue::from_static("application/json; charset=UTF-8");
                ([(header::CONTENT_TYPE, content_type)], body).into_response()
            }
            Err(error) => {
                tracing::error!(
                    request_id = request_id::current(), %error,
                    "failed to serialize response"
                );
                StatusCode::INTERNAL_SERVER_ERROR.into_response()
            }
        }
    }
}

/// Parses a request body. The body must contain exactly one JSON object.
pub(super) fn parse_body<T: DeserializeOwned>(body: &RequestBody) -> Result<T, ApiError> {
    let malformed_error = || ApiError::invalid_body("Request body includes malformed json");
    let mut json_values = serde_json::Deserializer::from_slice(body).into_iter();
    let first_value: serde_json::Value = json_values
        .next()
        .ok_or_else(malformed_error)?
        .map_err(|_| malformed_error())?;
    if json_values.next().is_some() {
        return Err(ApiError::invalid_body(
            "Request body must only contain one json object",
        ));
    }
    if first_value.is_null() {
        return Err(missing_fields_error());
    }
    if !first_value.is_object() {
        return Err(malformed_error());
    }
    serde_json::from_value(first_value).map_err(|_| malformed_error())
}

/// Returns the 400 error for a body that lacks a required field.
pub(super) fn missing_fields_error() -> ApiError {
    ApiError::invalid_body("Request body is missing required fields")
}
