//! Type of settings that contain certificates.

use std::path::PathBuf;

/// Certificates in PEM format: the path of a file, or the PEM text itself. The platform's
/// configuration file (`ACG_CONFIG`) contains PEM texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PemSource {
    /// Path of a PEM file.
    File(PathBuf),
    /// The PEM text.
    Inline(String),
}

impl PemSource {
    /// Returns the PEM text.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn read(&self) -> std::io::Result<String> {
        match self {
            Self::File(path) => std::fs::read_to_string(path),
            Self::Inline(text) => Ok(text.clone()),
        }
    }
}
