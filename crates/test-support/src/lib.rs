//! Helpers that tests share: connectors in both deployment modes, an MQTT client, fake external
//! services, certificates, and polling with a timeout.

#![allow(
    missing_docs,
    clippy::missing_panics_doc,
    clippy::missing_errors_doc,
    clippy::new_without_default,
    clippy::return_self_not_must_use,
    reason = "helpers of tests panic to fail the test, and only tests of this project use them"
)]

pub mod certs;
pub mod clock_offset;
pub mod cluster;
pub mod connector;
pub mod deployment;
pub mod gateway;
pub mod mqtt;
pub mod services;
pub mod stores;
pub mod websocket;

use std::future::Future;
use std::time::{Duration, Instant};

pub use certs::Certs;
pub use clock_offset::ClockOffset;
pub use connector::{Connector, connector_command};
pub use deployment::{Deployment, DeploymentMode, Settings};
pub use mqtt::RawClient;

/// Maximum time that a test waits for an expected condition. The timeout is long, because the
/// machine may be busy. Only failing tests wait for the whole timeout.
pub const CONDITION_TIMEOUT: Duration = Duration::from_mins(1);

const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Calls `poll` repeatedly until the result is `Some`. Panics after [`CONDITION_TIMEOUT`] with a
/// message that contains `description`.
pub async fn eventually<T, Fut, Poll>(description: &str, mut poll: Poll) -> T
where
    Poll: FnMut() -> Fut,
    Fut: Future<Output = Option<T>>,
{
    let deadline = Instant::now() + CONDITION_TIMEOUT;
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

/// Creates an HTTP client. Installs a rustls provider first, because `reqwest` is built without a
/// default provider.
///
/// The client closes a connection that was idle for five seconds, before the server does. Otherwise a
/// request fails if the server closes the connection at the moment at which the request is sent.
pub fn http_client() -> reqwest::Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let idle_timeout = Duration::from_secs(5);
    let client = reqwest::Client::builder().pool_idle_timeout(idle_timeout);
    client.build().expect("the default options are valid")
}

/// Returns the resident memory of a process, in MiB.
pub fn resident_memory_mib(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kib = line.unwrap().split_whitespace().nth(1).unwrap();
    kib.parse::<u64>().unwrap() / 1024
}

/// Returns `prefix` with a random suffix. Tests that share a database or a broker therefore use
/// different ids.
pub fn unique_id(prefix: &str) -> String {
    format!("{prefix}-{}", uuid::Uuid::new_v4().simple())
}

/// Returns the name of the environment variable that sets the configuration key, for example
/// `CLOUD_CONNECTOR__HTTP__LISTEN` for `http.listen`.
fn env_var_name(config_key: &str) -> String {
    format!(
        "CLOUD_CONNECTOR__{}",
        config_key.replace('.', "__").to_uppercase()
    )
}
