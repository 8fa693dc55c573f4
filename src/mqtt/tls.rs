//! Certificates of an MQTT client.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::client::ClientConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// PEM files: whom to trust, and who we are.
#[derive(Debug, Clone)]
pub struct ClientTls {
    /// Authorities that may sign the broker's certificate.
    pub ca: PathBuf,
    /// Our certificate chain.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

/// A file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot use {}: {problem}", path.display())]
pub struct ClientTlsError {
    path: PathBuf,
    problem: String,
}

impl ClientTls {
    pub(super) fn config(&self) -> Result<Arc<ClientConfig>, ClientTlsError> {
        let mut roots = RootCertStore::empty();
        for root in certificates(&self.ca)? {
            roots.add(root).map_err(|error| bad(&self.ca, &error))?;
        }
        let key = PrivateKeyDer::from_pem_file(&self.key).map_err(|e| bad(&self.key, &e))?;
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| bad(&self.ca, &error))?
            .with_root_certificates(roots)
            .with_client_auth_cert(certificates(&self.certificate)?, key)
            .map_err(|error| bad(&self.certificate, &error))?;
        Ok(Arc::new(config))
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, ClientTlsError> {
    CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|error| bad(path, &error))
}

fn bad(path: &Path, problem: &dyn std::fmt::Display) -> ClientTlsError {
    ClientTlsError {
        path: path.into(),
        problem: problem.to_string(),
    }
}
