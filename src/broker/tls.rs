//! The broker's certificates: read, checked, and read again when they change.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::RwLock;
use rustls::RootCertStore;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::server::{ServerConfig, VerifierBuilderError, WebPkiClientVerifier};
use tokio::signal::unix::{SignalKind, signal};
use tokio_rustls::TlsAcceptor;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::TlsError;
use crate::config::BrokerTls;
use crate::domain::ClientId;
use crate::shutdown::Stopper;
use crate::telemetry::metrics;

const CERTIFICATE: &str = "broker.tls.certificate";
const KEY: &str = "broker.tls.key";
const CLIENT_CA: &str = "broker.tls.client_ca";
const REVOCATION_LIST: &str = "broker.tls.revocation_list";

/// What new TLS connections are accepted with.
pub struct ServerTls {
    files: Files,
    current: RwLock<Arc<ServerConfig>>,
}

#[derive(Clone)]
struct Files {
    certificate: PathBuf,
    key: PathBuf,
    client_ca: PathBuf,
    revocation_list: Option<PathBuf>,
}

impl ServerTls {
    /// Reads and checks the files.
    ///
    /// # Errors
    /// When one of them cannot be used; names its setting.
    pub fn read(settings: &BrokerTls) -> Result<Self, TlsError> {
        let path = |path: &Option<PathBuf>| path.clone().unwrap_or_default();
        let files = Files {
            certificate: path(&settings.certificate),
            key: path(&settings.key),
            client_ca: path(&settings.client_ca),
            revocation_list: settings.revocation_list.clone(),
        };
        let current = RwLock::new(Arc::new(files.load()?));
        Ok(Self { files, current })
    }

    pub(super) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.current.read().clone())
    }

    fn reload(&self) {
        match self.files.load() {
            Ok(config) => {
                *self.current.write() = Arc::new(config);
                metrics::certificates_read(Ok(()));
            }
            Err(error) => metrics::certificates_read(Err(&error)),
        }
    }
}

impl Files {
    fn load(&self) -> Result<ServerConfig, TlsError> {
        let provider = Arc::new(ring::default_provider());
        let chain = certificates(CERTIFICATE, &self.certificate)?;
        for certificate in &chain {
            check_validity(CERTIFICATE, &self.certificate, certificate)?;
        }
        let key = private_key(&self.key)?;
        let roots = self.roots()?;
        let revoked = match &self.revocation_list {
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
                .map_err(|error| match (&error, &self.revocation_list) {
                    (VerifierBuilderError::InvalidCrl(_), Some(path)) => {
                        unusable(REVOCATION_LIST, path, &error)
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
        for root in certificates(CLIENT_CA, &self.client_ca)? {
            if let Err(error) = check_validity(CLIENT_CA, &self.client_ca, &root) {
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

    /// Changes when any of the files does.
    fn stamp(&self) -> Vec<Option<(SystemTime, u64)>> {
        [
            Some(&self.certificate),
            Some(&self.key),
            Some(&self.client_ca),
            self.revocation_list.as_ref(),
        ]
        .into_iter()
        .map(|path| {
            let file = std::fs::metadata(path?).ok()?;
            Some((file.modified().ok()?, file.len()))
        })
        .collect()
    }
}

/// Reads the files again on SIGHUP, and when they have changed.
pub(super) async fn keep_current(tls: Arc<ServerTls>, interval: Duration, stopper: Stopper) {
    let Ok(mut hangup) = signal(SignalKind::hangup()) else {
        tracing::warn!("SIGHUP cannot be watched: certificates are read again only at a restart");
        return;
    };
    let mut stamp = tls.files.stamp();
    loop {
        let asked_for = tokio::select! {
            _ = hangup.recv() => true,
            () = tokio::time::sleep(interval) => false,
            () = stopper.asked() => return,
        };
        let now = tls.files.stamp();
        if asked_for || now != stamp {
            stamp = now;
            tls.reload();
        }
    }
}

fn read(key: &'static str, path: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(path).map_err(|source| TlsError::Unreadable {
        key,
        path: path.into(),
        source,
    })
}

fn certificates(key: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let bytes = read(key, path)?;
    let chain: Vec<_> = CertificateDer::pem_slice_iter(&bytes)
        .collect::<Result<_, _>>()
        .map_err(|error| unusable(key, path, &error))?;
    if chain.is_empty() {
        return Err(unusable(key, path, &"holds no certificate in PEM form"));
    }
    Ok(chain)
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let bytes = read(KEY, path)?;
    PrivateKeyDer::from_pem_slice(&bytes)
        .map_err(|_| unusable(KEY, path, &"holds no private key in PEM form"))
}

fn revocation_lists(path: &Path) -> Result<Vec<CertificateRevocationListDer<'static>>, TlsError> {
    let bytes = read(REVOCATION_LIST, path)?;
    let lists: Vec<_> = CertificateRevocationListDer::pem_slice_iter(&bytes)
        .collect::<Result<_, _>>()
        .map_err(|error| unusable(REVOCATION_LIST, path, &error))?;
    if lists.is_empty() {
        // An empty answer would silently revoke nobody.
        let problem = "it holds no revocation list in PEM form";
        return Err(unusable(REVOCATION_LIST, path, &problem));
    }
    Ok(lists)
}

/// Reads a certificate file and checks that it is valid now. Says until when.
///
/// # Errors
/// When it is not, or cannot be read.
pub fn check_certificate(key: &'static str, path: &Path) -> Result<String, TlsError> {
    let chain = certificates(key, path)?;
    for certificate in &chain {
        check_validity(key, path, certificate)?;
    }
    let until = chain
        .iter()
        .filter_map(|der| X509Certificate::from_der(der).ok())
        .map(|(_, certificate)| certificate.validity().not_after)
        .min_by_key(x509_parser::time::ASN1Time::timestamp);
    Ok(until.map_or_else(String::new, |until| format!("valid until {until}")))
}

fn check_validity(
    key: &'static str,
    path: &Path,
    der: &CertificateDer<'_>,
) -> Result<(), TlsError> {
    let (_, certificate) =
        X509Certificate::from_der(der).map_err(|error| unusable(key, path, &error))?;
    let validity = certificate.validity();
    let problem = match validity.time_to_expiration() {
        Some(_) => return Ok(()),
        None if validity.not_after < x509_parser::time::ASN1Time::now() => {
            format!("expired on {}", validity.not_after)
        }
        None => format!("is not valid before {}", validity.not_before),
    };
    let cure = if key == CERTIFICATE {
        "replace it, for example with `cloud-connector certs issue --server`"
    } else {
        "replace it by one that is valid"
    };
    Err(TlsError::Validity {
        key,
        path: path.into(),
        problem,
        cure,
    })
}

fn unusable(key: &'static str, path: &Path, problem: &dyn std::fmt::Display) -> TlsError {
    TlsError::Unusable {
        key,
        path: path.into(),
        problem: format!("cannot be used: {problem}"),
    }
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
