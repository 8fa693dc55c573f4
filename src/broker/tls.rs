//! The broker's certificates: who may connect is decided by the authorities that sign clients.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use rustls::server::{ServerConfig, VerifierBuilderError, WebPkiClientVerifier};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::config::BrokerTls;
use crate::domain::ClientId;
use crate::tls_server::{self as tls, ServerTls, TlsError, unusable};

const CERTIFICATE: &str = "broker.tls.certificate";
const KEY: &str = "broker.tls.key";
const CLIENT_CA: &str = "broker.tls.client_ca";
const CRL: &str = "broker.tls.crl";

#[derive(Clone)]
struct Files {
    certificate: PathBuf,
    key: PathBuf,
    client_ca: PathBuf,
    crl: Option<PathBuf>,
}

/// Reads and checks the files.
///
/// # Errors
/// When one of them cannot be used; names its setting.
pub fn read_tls(settings: &BrokerTls) -> Result<ServerTls, TlsError> {
    let path = |path: &Option<PathBuf>| path.clone().unwrap_or_default();
    let files = Files {
        certificate: path(&settings.certificate),
        key: path(&settings.key),
        client_ca: path(&settings.client_ca),
        crl: settings.crl.clone(),
    };
    let mut watched = vec![
        files.certificate.clone(),
        files.key.clone(),
        files.client_ca.clone(),
    ];
    watched.extend(files.crl.clone());
    ServerTls::new("broker.tls", watched, move || files.load())
}

impl Files {
    fn load(&self) -> Result<ServerConfig, TlsError> {
        let provider = Arc::new(ring::default_provider());
        let chain = tls::certificates(CERTIFICATE, &self.certificate)?;
        for certificate in &chain {
            tls::check_validity(CERTIFICATE, &self.certificate, certificate)?;
        }
        let key = tls::private_key(KEY, &self.key)?;
        let roots = self.roots()?;
        let revoked = match &self.crl {
            Some(path) => revocation_lists(path)?,
            None => Vec::new(),
        };
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
                .with_crls(revoked)
                // A list speaks for the authority that signed it; who is of another is not on it.
                .only_check_end_entity_revocation()
                .allow_unknown_revocation_status()
                .build()
                .map_err(|error| match (&error, &self.crl) {
                    (VerifierBuilderError::InvalidCrl(_), Some(path)) => {
                        unusable(CRL, path, &error)
                    }
                    _ => unusable(CLIENT_CA, &self.client_ca, &error),
                })?;
        ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| unusable(CERTIFICATE, &self.certificate, &error))?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key)
            .map_err(|error| unusable(KEY, &self.key, &error))
    }

    /// Authorities whose time is over sign nobody any more; one that is valid is enough.
    fn roots(&self) -> Result<RootCertStore, TlsError> {
        let mut roots = RootCertStore::empty();
        let mut expired = None;
        for root in tls::certificates(CLIENT_CA, &self.client_ca)? {
            if let Err(error) = tls::check_validity(CLIENT_CA, &self.client_ca, &root) {
                expired = Some(error);
                continue;
            }
            roots
                .add(root)
                .map_err(|error| unusable(CLIENT_CA, &self.client_ca, &error))?;
        }
        match expired {
            Some(error) if roots.is_empty() => Err(error),
            Some(error) => {
                tracing::warn!(%error, "an authority is left out");
                Ok(roots)
            }
            None => Ok(roots),
        }
    }
}

fn revocation_lists(path: &Path) -> Result<Vec<CertificateRevocationListDer<'static>>, TlsError> {
    let bytes = tls::read(CRL, path)?;
    let lists: Vec<_> = CertificateRevocationListDer::pem_slice_iter(&bytes)
        .collect::<Result<_, _>>()
        .map_err(|error| unusable(CRL, path, &error))?;
    if lists.is_empty() {
        // An empty answer would silently revoke nobody.
        let problem = "it holds no revocation list in PEM form";
        return Err(unusable(CRL, path, &problem));
    }
    Ok(lists)
}

/// The common name of a certificate, if it could be a client's id.
pub(super) fn common_name(der: &CertificateDer<'_>) -> Option<ClientId> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let mut names = certificate.subject().iter_common_name();
    let name = names.next()?.as_str().ok()?;
    // Two names would be two identities.
    if names.next().is_some() {
        return None;
    }
    ClientId::new(name).ok()
}
