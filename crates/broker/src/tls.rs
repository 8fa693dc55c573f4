//! TLS configuration of the broker's listener. Also reads the client id from a client certificate.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use rustls::server::{ServerConfig, VerifierBuilderError, WebPkiClientVerifier};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::BrokerTlsSettings;
use super::rejected_certificate::NamingVerifier;
use domain::ClientId;
use network::tls_server::{self as tls, ServerTls, TlsError, unusable_file};

const CERTIFICATE_SETTING: &str = "broker.tls.certificate";
const PRIVATE_KEY_SETTING: &str = "broker.tls.key";
const CLIENT_CA_SETTING: &str = "broker.tls.client_ca";
const CRL_SETTING: &str = "broker.tls.crl";

#[derive(Clone)]
struct TlsFiles {
    certificate: PathBuf,
    private_key: PathBuf,
    client_ca: PathBuf,
    crl: Option<PathBuf>,
}

/// Reads and checks the configured certificate files.
///
/// # Errors
/// When a file cannot be used. The error names the setting that contains the path of the file.
pub fn read_tls(settings: &BrokerTlsSettings) -> Result<ServerTls, TlsError> {
    let path_or_empty = |path: &Option<PathBuf>| path.clone().unwrap_or_default();
    let files = TlsFiles {
        certificate: path_or_empty(&settings.certificate),
        private_key: path_or_empty(&settings.key),
        client_ca: path_or_empty(&settings.client_ca),
        crl: settings.crl.clone(),
    };
    let mut watched_files = vec![
        files.certificate.clone(),
        files.private_key.clone(),
        files.client_ca.clone(),
    ];
    watched_files.extend(files.crl.clone());
    ServerTls::new("mqtt", watched_files, move || files.load_server_config())
}

impl TlsFiles {
    fn load_server_config(&self) -> Result<ServerConfig, TlsError> {
        let provider = Arc::new(ring::default_provider());
        let chain = tls::read_certificates(CERTIFICATE_SETTING, &self.certificate)?;
        for certificate in &chain {
            tls::check_valid_now(CERTIFICATE_SETTING, &self.certificate, certificate)?;
        }
        let private_key = tls::read_private_key(PRIVATE_KEY_SETTING, &self.private_key)?;
        let client_cas = self.read_client_cas()?;
        let crls = match &self.crl {
            Some(path) => read_crls(path)?,
            None => Vec::new(),
        };
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(client_cas), provider.clone())
                .with_crls(crls)
                // A CRL lists only certificates that its own CA has issued. If another CA has no
                // CRL, the certificates of that CA are accepted.
                .only_check_end_entity_revocation()
                .allow_unknown_revocation_status()
                .build()
                .map_err(|error| match (&error, &self.crl) {
                    (VerifierBuilderError::InvalidCrl(_), Some(path)) => {
                        unusable_file(CRL_SETTING, path, &error)
                    }
                    _ => unusable_file(CLIENT_CA_SETTING, &self.client_ca, &error),
                })?;
        ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| unusable_file(CERTIFICATE_SETTING, &self.certificate, &error))?
            .with_client_cert_verifier(Arc::new(NamingVerifier::new(verifier)))
            .with_single_cert(chain, private_key)
            .map_err(|error| unusable_file(PRIVATE_KEY_SETTING, &self.private_key, &error))
    }

    /// Reads the CA certificates that sign client certificates. Skips expired CA certificates.
    /// Fails if all CA certificates are expired.
    fn read_client_cas(&self) -> Result<RootCertStore, TlsError> {
        let mut client_cas = RootCertStore::empty();
        let mut last_expiry_error = None;
        for ca in tls::read_certificates(CLIENT_CA_SETTING, &self.client_ca)? {
            if let Err(error) = tls::check_valid_now(CLIENT_CA_SETTING, &self.client_ca, &ca) {
                last_expiry_error = Some(error);
                continue;
            }
            client_cas
                .add(ca)
                .map_err(|error| unusable_file(CLIENT_CA_SETTING, &self.client_ca, &error))?;
        }
        match last_expiry_error {
            Some(error) if client_cas.is_empty() => Err(error),
            Some(error) => {
                tracing::warn!(%error, "expired CA certificate skipped");
                Ok(client_cas)
            }
            None => Ok(client_cas),
        }
    }
}

fn read_crls(path: &Path) -> Result<Vec<CertificateRevocationListDer<'static>>, TlsError> {
    let bytes = tls::read_file(CRL_SETTING, path)?;
    let crls: Vec<_> = CertificateRevocationListDer::pem_slice_iter(&bytes)
        .collect::<Result<_, _>>()
        .map_err(|error| unusable_file(CRL_SETTING, path, &error))?;
    if crls.is_empty() {
        // A file without a revocation list is rejected. Otherwise the broker would silently accept
        // revoked certificates.
        let problem = "the file contains no certificate revocation list in PEM format";
        return Err(unusable_file(CRL_SETTING, path, &problem));
    }
    Ok(crls)
}

/// Returns the certificate's common name. Returns `None` if the certificate does not have exactly
/// one common name, or if the common name is not a valid client id.
pub(super) fn common_name(der: &CertificateDer<'_>) -> Option<ClientId> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let mut common_names = certificate.subject().iter_common_name();
    let common_name = common_names.next()?.as_str().ok()?;
    if common_names.next().is_some() {
        return None;
    }
    ClientId::new(common_name).ok()
}
