//! Why certificates cannot be used.

use std::path::PathBuf;

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
