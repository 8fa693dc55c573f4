//! Why the broker cannot start. Each names its key and the cure.

use std::net::SocketAddr;

use crate::tls_server::TlsError;

/// A listener could not be had.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The address is taken, or not ours.
    #[error(
        "{key}: cannot listen on {address}: {source}; stop what listens there, or choose another address"
    )]
    Bind {
        /// The setting.
        key: &'static str,
        /// The address.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// The certificates cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
}
