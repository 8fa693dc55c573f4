//! Helpers that tests share: connectors in both deployment modes, an MQTT client, fake external
//! services, certificates, and polling with a timeout.

pub mod certs;
#[cfg(feature = "external-services")]
pub mod cluster;
pub mod connector;
pub mod deployment;
pub mod gateway;
pub mod mqtt;
#[cfg(feature = "external-services")]
pub mod services;

use std::future::Future;
use std::time::{Duration, Instant};

pub use certs::Certs;
pub use connector::{Connector, connector_command};
pub use deployment::Deployment;
pub use mqtt::RawClient;

/// Maximum time to wait for an expected condition. It is long enough for a busy machine, and only
/// failing tests wait for all of it.
pub const TIMEOUT: Duration = Duration::from_mins(1);

const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Calls `poll` until it returns `Some`. Panics with `description` after [`TIMEOUT`].
pub async fn eventually<T, Fut, Poll>(description: &str, mut poll: Poll) -> T
where
    Poll: FnMut() -> Fut,
    Fut: Future<Output = Option<T>>,
{
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if let Some(value) = poll().await {
            return value;
        }
        assert!(
            Instant::now() < deadline,
            "timed out waiting for: {description}"
        );
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Creates an HTTP client. `reqwest` is built without a default rustls provider, so the test
/// process must install one.
pub fn http_client() -> reqwest::Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::new()
}

/// Returns `prefix` with a random suffix, so tests that share a database or a broker do not
/// collide.
pub fn unique_id(prefix: &str) -> String {
    format!("{prefix}-{}", uuid::Uuid::new_v4().simple())
}

/// Environment variable that sets the configuration key, for example `http.listen`.
fn env_var_name(key: &str) -> String {
    format!("CLOUD_CONNECTOR__{}", key.replace('.', "__").to_uppercase())
}
