//! Certificates of an MQTT client.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::client::ClientConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::config::Pem;

/// Whom to trust, and who we are.
#[derive(Debug, Clone, Default)]
pub struct ClientTls {
    /// Authorities that may sign the broker's certificate; none for those of the system.
    pub ca: Option<Pem>,
    /// Our certificate chain and its key (PEM files), where the broker wants them.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// A file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{key}: cannot use {what}: {problem}; it must be in PEM form")]
pub struct TlsFileError {
    key: &'static str,
    what: String,
    problem: String,
}

impl ClientTls {
    pub(super) fn config(&self) -> Result<Arc<ClientConfig>, TlsFileError> {
        let roots = self.roots()?;
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| bad("mqtt.ca", "the protocol versions", &error))?
            .with_root_certificates(roots);
        let config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some((certificate, key_file)) => {
                let chain = pem_file("mqtt.certificate", certificate)?;
                let key = PrivateKeyDer::from_pem_file(key_file)
                    .map_err(|error| bad("mqtt.key", &key_file.display(), &error))?;
                builder
                    .with_client_auth_cert(chain, key)
                    .map_err(|error| bad("mqtt.certificate", &certificate.display(), &error))?
            }
        };
        Ok(Arc::new(config))
    }

    fn roots(&self) -> Result<RootCertStore, TlsFileError> {
        let mut roots = RootCertStore::empty();
        let Some(ca) = &self.ca else {
            let system = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(system.certs);
            return Ok(roots);
        };
        let what = match ca {
            Pem::File(path) => path.display().to_string(),
            Pem::Text(_) => "the given text".to_owned(),
        };
        let text = ca.read().map_err(|error| bad("mqtt.ca", &what, &error))?;
        let found: Vec<_> = CertificateDer::pem_slice_iter(text.as_bytes())
            .collect::<Result<_, _>>()
            .map_err(|error| bad("mqtt.ca", &what, &error))?;
        if found.is_empty() {
            return Err(bad("mqtt.ca", &what, &"it holds no certificate"));
        }
        for root in found {
            roots
                .add(root)
                .map_err(|error| bad("mqtt.ca", &what, &error))?;
        }
        Ok(roots)
    }
}

fn pem_file(key: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsFileError> {
    CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|error| bad(key, &path.display(), &error))
}

fn bad(
    key: &'static str,
    what: &(impl std::fmt::Display + ?Sized),
    problem: &dyn std::fmt::Display,
) -> TlsFileError {
    TlsFileError {
        key,
        what: what.to_string(),
        problem: problem.to_string(),
    }
}
