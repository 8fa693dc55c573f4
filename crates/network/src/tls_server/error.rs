//! Errors of certificate files.

use std::path::PathBuf;

/// A certificate, private key or certificate revocation list cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The file cannot be read.
    #[error(
        "{setting_name}: cannot read {}: {source}; check the path and the permissions",
        path.display()
    )]
    CannotRead {
        /// Name of the setting that contains the path.
        setting_name: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The file was read, but its content cannot be used.
    #[error(
        "{setting_name}: cannot use {}: {problem}; create valid files with `cloud-connector certs`",
        path.display()
    )]
    Unusable {
        /// Name of the setting that contains the path.
        setting_name: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Description of the problem.
        problem: String,
    },
    /// The certificate has expired or is not valid yet.
    #[error("{setting_name}: the certificate {} {problem}; {hint}", path.display())]
    NotValidNow {
        /// Name of the setting that contains the path.
        setting_name: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// The text "expired on …" or "is not valid before …".
        problem: String,
        /// How to replace the certificate.
        hint: &'static str,
    },
}
