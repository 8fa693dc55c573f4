//! The OpenAPI document for programs, and a page for people who want to read and try it. Both without
//! authentication: they say nothing that the source does not. The page fetches nothing from elsewhere,
//! and its policy keeps the browser from doing so.

use axum::Router;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bytes::Bytes;
use utoipa::openapi::OpenApi;

use super::openapi;

/// Scripts, styles and requests of the page's own; no text is ever taken for HTML.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
     require-trusted-types-for 'script'; trusted-types 'none'",
);

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

/// Path, content type, content.
const FILES: [(&str, &str, &str); 8] = [
    ("/docs", HTML, include_str!("page.html")),
    ("/docs/docs.css", CSS, include_str!("docs.css")),
    ("/docs/docs.js", SCRIPT, include_str!("docs.js")),
    ("/docs/dom.js", SCRIPT, include_str!("dom.js")),
    ("/docs/request.js", SCRIPT, include_str!("request.js")),
    ("/docs/schema.js", SCRIPT, include_str!("schema.js")),
    ("/docs/try.js", SCRIPT, include_str!("try.js")),
    ("/docs/icon.svg", SVG, include_str!("icon.svg")),
];

pub(super) fn router(document: &OpenApi) -> Router {
    let document = Bytes::from(openapi::text(document));
    let json = "application/json; charset=UTF-8";
    let router = Router::new().route(
        "/openapi.json",
        get(async move || file(json, document.clone())),
    );
    FILES.iter().fold(router, |router, (path, kind, content)| {
        router.route(path, get(async || file(kind, *content)))
    })
}

fn file(kind: &'static str, content: impl IntoResponse) -> Response {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(kind)),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (
            header::X_CONTENT_TYPE_OPTIONS,
            HeaderValue::from_static("nosniff"),
        ),
        (
            header::REFERRER_POLICY,
            HeaderValue::from_static("no-referrer"),
        ),
        // It comes with the program: a new one may have a new page.
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
    ];
    (headers, content).into_response()
}
