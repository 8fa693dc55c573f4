//! Why the broker cannot start. Each names its key and the cure.

use std::net::SocketAddr;
use std::path::PathBuf;

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

/// A certificate, key or list cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The file cannot be read.
    #[error("{key}: cannot read {}: {source}; check the path and its permissions", path.display())]
    Unreadable {
        /// The setting.
        key: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It holds nothing that could be used.
    #[error("{key}: {} {problem}; `cloud-connector certs` makes files that do", path.display())]
    Unusable {
        /// The setting.
        key: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// Its time is over, or has not come.
    #[error("{key}: the certificate {} {problem}; {cure}", path.display())]
    Validity {
        /// The setting.
        key: &'static str,
        /// The file.
        path: PathBuf,
        /// "expired on …" or "is not valid before …".
        problem: String,
        /// How to replace it.
        cure: &'static str,
    },
}
