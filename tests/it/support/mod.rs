//! What tests share: a connector to talk to, a client to talk with, and a way to wait.

pub mod certs;
pub mod connector;
pub mod deployment;
#[cfg(feature = "external-services")]
pub mod fleet;
pub mod gateway;
pub mod mqtt;
#[cfg(feature = "external-services")]
pub mod services;

use std::future::Future;
use std::time::{Duration, Instant};

pub use certs::Certs;
pub use connector::{Connector, program};
pub use deployment::Deployment;
pub use mqtt::RawClient;

/// Long enough for a busy machine; nobody waits it out unless something is broken.
pub const TIMEOUT: Duration = Duration::from_mins(1);

/// Asks again and again until there is an answer; fails with `what` when there is none.
pub async fn eventually<T, F, A>(what: &str, mut ask: A) -> T
where
    A: FnMut() -> F,
    F: Future<Output = Option<T>>,
{
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(Instant::now() < deadline, "in vain waited for: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// An HTTP client. The program brings the cryptography that the crate wants; a test has to.
pub fn http() -> reqwest::Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::new()
}

/// A name that no other test uses.
pub fn unique(name: &str) -> String {
    format!("{name}-{}", uuid::Uuid::new_v4().simple())
}
