//! Errors at startup of the broker.

use std::net::SocketAddr;

/// A listener's address could not be bound.
#[derive(Debug, thiserror::Error)]
#[error(
    "{key}: cannot listen on {address}: {source}; \
     stop the process that uses the address, or choose another address"
)]
pub struct BindError {
    /// The configuration key of the address.
    pub key: &'static str,
    /// The address.
    pub address: SocketAddr,
    /// The operating system's error.
    pub source: std::io::Error,
}
