//! The id of the HTTP request that the current task handles.
//!
//! Log lines and requests to other services contain this id. A tracing span could also store the
//! id, but would make each request about 10% slower.

use std::future::Future;

tokio::task_local! {
    static CURRENT_REQUEST_ID: String;
}

/// Runs a future with `request_id` as the current request id.
pub fn scope<F: Future>(request_id: String, future: F) -> impl Future<Output = F::Output> {
    CURRENT_REQUEST_ID.scope(request_id, future)
}

/// Returns the current request id. Returns `None` if the current task handles no request.
#[must_use]
pub fn current() -> Option<String> {
    CURRENT_REQUEST_ID.try_with(Clone::clone).ok()
}
