//! Errors at startup of the broker.

use std::net::SocketAddr;

/// A listener's address could not be bound.
#[derive(Debug, thiserror::Error)]
#[error(
    "{setting_name}: cannot listen on {address}: {source}; \
     stop the process that uses the address, or choose another address"
)]
pub struct BindError {
    /// Name of the setting that contains the address.
    pub setting_name: &'static str,
    /// The address that could not be bound.
    pub address: SocketAddr,
    /// The operating system's error.
    pub source: std::io::Error,
}
