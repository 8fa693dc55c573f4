//! The id of the request that is being answered: for log lines, and for whoever asks others because of
//! it. A span would carry it into every line by itself, and cost each request a tenth of its time.

use std::future::Future;

tokio::task_local! {
    static CURRENT: String;
}

/// Does this on behalf of a request.
pub fn scope<F: Future>(id: String, work: F) -> impl Future<Output = F::Output> {
    CURRENT.scope(id, work)
}

/// The id of the request that this is done for, if there is one.
#[must_use]
pub fn current() -> Option<String> {
    CURRENT.try_with(Clone::clone).ok()
}
