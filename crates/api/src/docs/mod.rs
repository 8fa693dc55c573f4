//! Serves the OpenAPI document `openapi.json`, the AsyncAPI document `asyncapi.json` of the events, and
//! the documentation page `docs`. On the page,
//! users can read about the endpoints and send requests to them.
//!
//! The documents and the page require no authentication, because they contain no secrets. The
//! Content-Security-Policy of the page forbids loading resources from other servers.

use axum::Router;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bytes::Bytes;
use utoipa::openapi::OpenApi;

use super::openapi;

/// Content-Security-Policy of the documentation page. Allows scripts, styles, images and requests
/// only from this server. Also prevents scripts from parsing text as HTML.
const CONTENT_SECURITY_POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
     require-trusted-types-for 'script'; trusted-types 'none'",
);

const HTML_CONTENT_TYPE: &str = "text/html; charset=utf-8";
const CSS_CONTENT_TYPE: &str = "text/css; charset=utf-8";
const JAVASCRIPT_CONTENT_TYPE: &str = "text/javascript; charset=utf-8";
const SVG_CONTENT_TYPE: &str = "image/svg+xml";

/// Path, content type and content of each file of the documentation page.
const DOCS_PAGE_FILES: [(&str, &str, &str); 8] = [
    ("/docs", HTML_CONTENT_TYPE, include_str!("page.html")),
    ("/docs/docs.css", CSS_CONTENT_TYPE, include_str!("docs.css")),
    (
        "/docs/docs.js",
        JAVASCRIPT_CONTENT_TYPE,
        include_str!("docs.js"),
    ),
    (
        "/docs/dom.js",
        JAVASCRIPT_CONTENT_TYPE,
        include_str!("dom.js"),
    ),
    (
        "/docs/request.js",
        JAVASCRIPT_CONTENT_TYPE,
        include_str!("request.js"),
    ),
    (
        "/docs/schema.js",
        JAVASCRIPT_CONTENT_TYPE,
        include_str!("schema.js"),
    ),
    (
        "/docs/try.js",
        JAVASCRIPT_CONTENT_TYPE,
        include_str!("try.js"),
    ),
    ("/docs/icon.svg", SVG_CONTENT_TYPE, include_str!("icon.svg")),
];

pub(super) fn router(document: &OpenApi, asyncapi: String) -> Router {
    let document = Bytes::from(openapi::to_json(document));
    let json_content_type = "application/json; charset=UTF-8";
    let asyncapi = Bytes::from(asyncapi);
    let router = Router::new()
        .route(
            "/openapi.json",
            get(async move || file_response(json_content_type, document.clone())),
        )
        .route(
            "/asyncapi.json",
            get(async move || file_response(json_content_type, asyncapi.clone())),
        );
    DOCS_PAGE_FILES
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
        // The browser must check for a new version before it uses a cached file. An update of the
        // service may change the files, because the files are part of the binary.
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
    ];
    (headers, content).into_response()
}
