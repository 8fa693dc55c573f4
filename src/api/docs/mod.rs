//! The OpenAPI document `openapi.json`, and the page `docs` where people can read and try it.
//!
//! Neither requires authentication, because neither contains secrets. The page loads nothing from
//! other servers, and its Content-Security-Policy enforces this.

use axum::Router;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bytes::Bytes;
use utoipa::openapi::OpenApi;

use super::openapi;

/// Allows only the page's own scripts, styles and requests, and prevents parsing of text as HTML.
const CONTENT_SECURITY_POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
     require-trusted-types-for 'script'; trusted-types 'none'",
);

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const JAVASCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

/// Path, content type and content of each file.
const FILES: [(&str, &str, &str); 8] = [
    ("/docs", HTML, include_str!("page.html")),
    ("/docs/docs.css", CSS, include_str!("docs.css")),
    ("/docs/docs.js", JAVASCRIPT, include_str!("docs.js")),
    ("/docs/dom.js", JAVASCRIPT, include_str!("dom.js")),
    ("/docs/request.js", JAVASCRIPT, include_str!("request.js")),
    ("/docs/schema.js", JAVASCRIPT, include_str!("schema.js")),
    ("/docs/try.js", JAVASCRIPT, include_str!("try.js")),
    ("/docs/icon.svg", SVG, include_str!("icon.svg")),
];

pub(super) fn router(document: &OpenApi) -> Router {
    let document = Bytes::from(openapi::to_json(document));
    let json = "application/json; charset=UTF-8";
    let router = Router::new().route(
        "/openapi.json",
        get(async move || file_response(json, document.clone())),
    );
    FILES
        .iter()
        .fold(router, |router, (path, content_type, content)| {
            router.route(path, get(async || file_response(content_type, *content)))
        })
}

fn file_response(content_type: &'static str, content: impl IntoResponse) -> Response {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(content_type)),
        (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
        (
            header::X_CONTENT_TYPE_OPTIONS,
            HeaderValue::from_static("nosniff"),
        ),
        (
            header::REFERRER_POLICY,
            HeaderValue::from_static("no-referrer"),
        ),
        // The files are part of the binary, so a new version of the service may change them.
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
    ];
    (headers, content).into_response()
}
