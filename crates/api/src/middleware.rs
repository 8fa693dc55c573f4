//! Middleware that runs for every HTTP request: request id, body limits, timeout, panic handling,
//! metrics and access log.

use std::net::{IpAddr, SocketAddr};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, MatchedPath, Request, State};
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures::FutureExt as _;
use tokio::time::Instant;
use tracing::field;
use uuid::Uuid;

use super::client_address::{ForwardedFor, IpRange};
use super::error::ApiError;
use super::{HttpSettings, health, metrics};
use service::{log_text, request_id};

/// Log target of the access log.
const ACCESS_LOG_TARGET: &str = "cloud_connector::access";

const REQUEST_ID_HEADER: HeaderName = HeaderName::from_static("x-rh-insights-request-id");
const MAX_REQUEST_ID_BYTES: usize = 128;

/// Maximum number of characters in the fields of the access log. Callers choose these texts.
const MAX_LOGGED_METHOD_CHARS: usize = 16;
const MAX_LOGGED_PATH_CHARS: usize = 256;
const MAX_LOGGED_CALLER_CHARS: usize = 64;

/// Remote address of the TCP connection on which a request was received.
#[derive(Debug, Clone, Copy)]
pub(super) struct Peer(pub SocketAddr);

/// Whether a TCP connection has a response that ends only when the caller or this process closes the
/// connection.
#[derive(Debug, Clone, Default)]
pub(super) struct ConnectionStreams(Arc<AtomicBool>);

impl ConnectionStreams {
    /// Marks the connection until the returned value is dropped. An HTTP/1 connection has one response
    /// at a time.
    pub fn open(&self) -> OpenStream {
        self.0.store(true, Ordering::Release);
        OpenStream(self.clone())
    }

    /// Returns whether the connection has such a response.
    pub fn has_open_stream(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// A response that ends only when the caller or this process closes the connection.
pub(super) struct OpenStream(ConnectionStreams);

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.0.store(false, Ordering::Release);
    }
}

/// Caller and tenant of a request, for the access log. Empty until the request is authenticated.
#[derive(Clone, Default)]
pub(super) struct AccessLogContext(Arc<OnceLock<(String, String)>>);

impl AccessLogContext {
    pub fn set_caller(&self, caller: &str, tenant: &str) {
        // `set` fails only if the caller is already set. A request is authenticated only once, so
        // the caller is not set yet.
        let logged = |text| log_text(text, MAX_LOGGED_CALLER_CHARS);
        let _ = self.0.set((logged(caller), logged(tenant)));
    }
}

#[derive(Debug, Clone)]
pub(super) struct MiddlewareConfig {
    pub max_body_bytes: usize,
    pub request_timeout: Duration,
    pub is_access_log_enabled: bool,
    /// The proxies whose header `X-Forwarded-For` is used.
    pub trusted_proxies: Arc<[IpRange]>,
}

impl MiddlewareConfig {
    pub fn from_config(http: &HttpSettings) -> Self {
        Self {
            max_body_bytes: http.max_body_bytes,
            request_timeout: http.request_timeout.get(),
            is_access_log_enabled: http.access_log,
            trusted_proxies: http.trusted_proxies.as_slice().into(),
        }
    }
}

/// Applies all middleware to a request, and runs the request handler.
///
/// This function contains all middleware, because separate layers would add memory allocations to
/// every request.
pub(super) async fn handle_request(
    State(config): State<MiddlewareConfig>,
    mut request: Request,
    next: Next,
) -> Response {
    let started_at = Instant::now();
    let (id_header, request_id) = caller_request_id(&request).unwrap_or_else(new_request_id);
    // The metric label contains the route pattern, not the path. Paths contain client ids, so the
    // number of label values would be unbounded.
    let route = request.extensions().get::<MatchedPath>().cloned();
    let route = route.as_ref().map_or("none", |matched| matched.as_str());
    if let Some(forwarded_for) = ForwardedFor::of(&request, &config.trusted_proxies) {
        request.extensions_mut().insert(forwarded_for);
    }
    let is_logged = config.is_access_log_enabled && !health::PROBE_PATHS.contains(&route);
    let log_entry = is_logged.then(|| AccessLogEntry::from_request(&request));
    if let Some(log_entry) = &log_entry {
        request.extensions_mut().insert(log_entry.context.clone());
    }
    DefaultBodyLimit::max(config.max_body_bytes).apply(&mut request);
    let handler = run_with_timeout_and_panic_handler(config.request_timeout, next.run(request));
    let mut response = request_id::scope(request_id, handler).await;
    let duration = started_at.elapsed();
    let status = response.status().as_u16();
    metrics::observe_http_request(route, status, duration);
    if let Some(log_entry) = log_entry {
        let request_id = id_header.to_str().unwrap_or_default();
        log_entry.log(request_id, status, duration.as_secs_f64() * 1e3);
    }
    response.headers_mut().insert(REQUEST_ID_HEADER, id_header);
    response
}

/// Runs a request handler. A timeout becomes a 503 response, and a panic becomes a 500 response.
async fn run_with_timeout_and_panic_handler(
    timeout: Duration,
    handler: impl Future<Output = Response>,
) -> Response {
    let handler = AssertUnwindSafe(handler).catch_unwind();
    match tokio::time::timeout(timeout, handler).await {
        Ok(Ok(response)) => response,
        Ok(Err(panic)) => ApiError::from_panic(&*panic).into_response(),
        Err(_) => ApiError::unavailable("The request timed out; retry later").into_response(),
    }
}

/// Request data for the access log. Omits the query and the headers, because the query and the
/// headers may contain secrets.
struct AccessLogEntry {
    method: String,
    path: String,
    peer: Option<SocketAddr>,
    forwarded_for: Option<IpAddr>,
    context: AccessLogContext,
}

impl AccessLogEntry {
    fn from_request(request: &Request) -> Self {
        let extensions = request.extensions();
        Self {
            method: log_text(request.method().as_str(), MAX_LOGGED_METHOD_CHARS),
            path: log_text(request.uri().path(), MAX_LOGGED_PATH_CHARS),
            peer: extensions.get().map(|Peer(peer)| *peer),
            forwarded_for: extensions.get().map(|ForwardedFor(address)| *address),
            context: AccessLogContext::default(),
        }
    }

    fn log(&self, request_id: &str, status: u16, duration_ms: f64) {
        let Self {
            method,
            path,
            peer,
            forwarded_for,
            context,
        } = self;
        let peer = peer.map(field::display);
        let forwarded_for = forwarded_for.map(field::display);
        let caller_and_tenant = context.0.get();
        let caller = caller_and_tenant.map_or("", |(caller, _)| caller);
        let tenant = caller_and_tenant.map_or("", |(_, tenant)| tenant);
        tracing::info!(
            target: ACCESS_LOG_TARGET, request_id, caller, tenant, method, path, status,
            duration_ms, peer, forwarded_for, "request completed"
        );
    }
}

/// Returns the request id that the caller sent: the header value, and the same id as a string.
/// Returns `None` if the request id is missing, empty, too long or not printable.
fn caller_request_id(request: &Request) -> Option<(HeaderValue, String)> {
    let header = request.headers().get(REQUEST_ID_HEADER)?;
    let text = header.to_str().ok()?;
    let is_valid = !text.is_empty() && text.len() <= MAX_REQUEST_ID_BYTES;
    is_valid.then(|| (header.clone(), text.to_owned()))
}

fn new_request_id() -> (HeaderValue, String) {
    let request_id = Uuid::new_v4().simple().to_string();
    let header = HeaderValue::from_str(&request_id);
    let header = header.unwrap_or_else(|_| HeaderValue::from_static("none"));
    (header, request_id)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use axum::Router;
    use axum::body::{Body, to_bytes};
    use axum::middleware::from_fn_with_state;
    use axum::routing::get;
    use hyper::service::Service as _;
    use hyper_util::service::TowerToHyperService;
    use serde_json::{Value, json};
    use tracing_subscriber::fmt::MakeWriter as _;

    use super::*;

    /// Sends a GET request with the request id `request-9` to `path`. Returns the `Retry-After`
    /// header and the body.
    async fn get_response(router: Router, path: &str) -> (Option<HeaderValue>, Value) {
        let config = MiddlewareConfig {
            max_body_bytes: 1024,
            request_timeout: Duration::from_secs(3),
            is_access_log_enabled: false,
            trusted_proxies: [].into(),
        };
        let router = router.layer(from_fn_with_state(config, handle_request));
        let request = Request::get(path)
            .header(REQUEST_ID_HEADER, "request-9")
            .body(Body::empty())
            .unwrap();
        let response = TowerToHyperService::new(router).call(request).await;
        let response = response.unwrap();
        let (status, headers) = (response.status(), response.headers());
        assert_eq!(headers[REQUEST_ID_HEADER], "request-9");
        assert_eq!(headers["content-type"], "application/json; charset=UTF-8");
        let retry_after = headers.get("retry-after").cloned();
        let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(body["status"], status.as_u16());
        (retry_after, body)
    }

    #[tokio::test]
    async fn a_panic_becomes_a_500_response_and_is_logged_with_the_request_id() {
        static LOG: Mutex<Vec<u8>> = Mutex::new(Vec::new());
        async fn panic_handler() {
            panic!("handler of the test");
        }
        let subscriber = tracing_subscriber::fmt().json();
        let subscriber = subscriber.with_writer(|| LOG.make_writer()).finish();
        let _guard = tracing::subscriber::set_default(subscriber);
        let router = Router::new().route("/panic", get(panic_handler));
        let (_, body) = get_response(router, "/panic").await;
        assert_eq!(body["title"], "Internal server error");
        assert!(!body.to_string().contains("handler of the test"), "{body}");
        let line: Value = serde_json::from_slice(&LOG.lock().unwrap()).unwrap();
        assert_eq!(
            (&line["level"], &line["fields"]),
            (
                &json!("ERROR"),
                &json!({
                    "message": "request handler panicked",
                    "request_id": "request-9",
                    "panic": "handler of the test",
                })
            )
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_times_out_becomes_a_503_response() {
        let router = Router::new().route("/slow", get(std::future::pending::<()>));
        let (retry_after, body) = get_response(router, "/slow").await;
        assert_eq!(body["title"], "Service unavailable");
        assert_eq!(retry_after.unwrap(), "5");
    }
}
