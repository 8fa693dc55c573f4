//! TLS configuration of an MQTT client.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::client::ClientConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use service::settings::PemSource;

/// Certificates that an MQTT client uses for TLS.
#[derive(Debug, Clone, Default)]
pub struct ClientTls {
    /// CA certificates that verify the broker's certificate. `None` means the CA certificates of
    /// the system.
    pub ca: Option<PemSource>,
    /// Paths of the client's certificate chain and private key, if the broker requires them.
    pub certificate_and_key_files: Option<(PathBuf, PathBuf)>,
}

/// A certificate or key cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{setting_name}: cannot use {input_description}: {problem}; use PEM format")]
pub struct TlsFileError {
    setting_name: &'static str,
    /// Path of the unusable file. If the configuration contains the PEM text itself, this is a
    /// description of the text.
    input_description: String,
    problem: String,
}

impl ClientTls {
    pub(super) fn to_rustls_config(&self) -> Result<Arc<ClientConfig>, TlsFileError> {
        let roots = self.read_roots()?;
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| file_error("mqtt.ca", "the TLS protocol versions", &error))?
            .with_root_certificates(roots);
        let config = match &self.certificate_and_key_files {
            None => builder.with_no_client_auth(),
            Some((certificate, key_file)) => {
                let chain = read_certificates("mqtt.certificate", certificate)?;
                let private_key = PrivateKeyDer::from_pem_file(key_file)
                    .map_err(|error| file_error("mqtt.key", &key_file.display(), &error))?;
                builder
                    .with_client_auth_cert(chain, private_key)
                    .map_err(|error| {
                        file_error("mqtt.certificate", &certificate.display(), &error)
                    })?
            }
        };
        Ok(Arc::new(config))
    }

    fn read_roots(&self) -> Result<RootCertStore, TlsFileError> {
        let mut roots = RootCertStore::empty();
        let Some(ca) = &self.ca else {
            let system = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(system.certs);
            return Ok(roots);
        };
        let input_description = match ca {
            PemSource::File(path) => path.display().to_string(),
            PemSource::Inline(_) => "the text in the configuration".to_owned(),
        };
        let unusable_ca =
            |problem: &dyn std::fmt::Display| file_error("mqtt.ca", &input_description, problem);
        let text = ca.read().map_err(|error| unusable_ca(&error))?;
        let certificates: Vec<_> = CertificateDer::pem_slice_iter(text.as_bytes())
            .collect::<Result<_, _>>()
            .map_err(|error| unusable_ca(&error))?;
        if certificates.is_empty() {
            return Err(unusable_ca(&"no certificate found"));
        }
        for certificate in certificates {
            roots
                .add(certificate)
                .map_err(|error| unusable_ca(&error))?;
        }
        Ok(roots)
    }
}

fn read_certificates(
    setting_name: &'static str,
    path: &Path,
) -> Result<Vec<CertificateDer<'static>>, TlsFileError> {
    CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|error| file_error(setting_name, &path.display(), &error))
}

fn file_error(
    setting_name: &'static str,
    input_description: &(impl std::fmt::Display + ?Sized),
    problem: &dyn std::fmt::Display,
) -> TlsFileError {
    TlsFileError {
        setting_name,
        input_description: input_description.to_string(),
        problem: problem.to_string(),
    }
}
