//! Errors in certificate files.

use std::path::PathBuf;

/// A certificate, private key or certificate revocation list cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The file cannot be read.
    #[error("{key}: cannot read {}: {source}; check the path and the permissions", path.display())]
    CannotRead {
        /// Configuration key.
        key: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The file has no usable content.
    #[error(
        "{key}: cannot use {}: {problem}; create valid files with `cloud-connector certs`",
        path.display()
    )]
    Unusable {
        /// Configuration key.
        key: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Description of the problem.
        problem: String,
    },
    /// The certificate has expired or is not valid yet.
    #[error("{key}: the certificate {} {problem}; {hint}", path.display())]
    NotValidNow {
        /// Configuration key.
        key: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// "expired on …" or "is not valid before …".
        problem: String,
        /// How to replace the certificate.
        hint: &'static str,
    },
}
