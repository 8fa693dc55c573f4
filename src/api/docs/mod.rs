//! The OpenAPI document for programs, without authentication.

use axum::Router;
use axum::http::header;
use axum::routing::get;
use bytes::Bytes;
use utoipa::openapi::OpenApi;

use super::openapi;

pub(super) fn router(document: &OpenApi) -> Router {
    let document = Bytes::from(openapi::text(document));
    let kind = [(header::CONTENT_TYPE, "application/json; charset=UTF-8")];
    Router::new().route("/openapi.json", get(async move || (kind, document.clone())))
}
