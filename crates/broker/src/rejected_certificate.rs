//! Finds out the common name of a client certificate that the TLS handshake rejects because it is
//! expired, not yet valid, or revoked.
//!
//! `rustls` does not return the certificates of a failed handshake. A certificate that no client CA
//! has issued is ignored, because anyone can create it with any name.

use std::cell::RefCell;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::tls::common_name;
use domain::ClientId;

tokio::task_local! {
    /// The common name of the certificate that the current handshake has rejected.
    static REJECTED_NAME: RefCell<Option<ClientId>>;
}

/// Performs a TLS handshake whose certificates a [`NamingVerifier`] verifies. Also returns the common
/// name of the client certificate if the verifier has rejected it and knows that a client CA has
/// issued it.
pub(super) async fn with_rejected_name<F: Future>(handshake: F) -> (F::Output, Option<ClientId>) {
    let run = async {
        let output = handshake.await;
        (output, REJECTED_NAME.with(RefCell::take))
    };
    REJECTED_NAME.scope(RefCell::new(None), run).await
}

/// Verifies client certificates like its inner verifier, and records the common names of rejected
/// certificates for [`with_rejected_name`].
#[derive(Debug)]
pub(super) struct NamingVerifier {
    inner: Arc<dyn ClientCertVerifier>,
}

impl NamingVerifier {
    pub fn new(inner: Arc<dyn ClientCertVerifier>) -> Self {
        Self { inner }
    }

    /// Returns whether a client CA has issued a certificate that was rejected with `error`.
    fn is_issued_by_client_ca(
        &self,
        error: &Error,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
    ) -> bool {
        let Error::InvalidCertificate(error) = error else {
            return false;
        };
        match error {
            // The signatures are verified before the revocation lists.
            CertificateError::Revoked => true,
            // The time is checked before the signatures. So the certificate is verified again, for
            // a time at which it was valid.
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. } => {
                let Some(last_valid_time) = last_valid_time(certificate) else {
                    return false;
                };
                let inner = &self.inner;
                match inner.verify_client_cert(certificate, intermediates, last_valid_time) {
                    Ok(_) => true,
                    Err(error) => error == Error::InvalidCertificate(CertificateError::Revoked),
                }
            }
            _ => false,
        }
    }
}

fn last_valid_time(certificate: &CertificateDer<'_>) -> Option<UnixTime> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let seconds = u64::try_from(certificate.validity().not_after.timestamp()).ok()?;
    Some(UnixTime::since_unix_epoch(Duration::from_secs(seconds)))
}

impl ClientCertVerifier for NamingVerifier {
    fn offer_client_auth(&self) -> bool {
        self.inner.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.inner.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let result = self
            .inner
            .verify_client_cert(certificate, intermediates, now);
        if let Err(error) = &result
            && self.is_issued_by_client_ca(error, certificate, intermediates)
        {
            // Fails only outside `with_rejected_name`, where the name is not needed.
            let _ = REJECTED_NAME.try_with(|name| name.replace(common_name(certificate)));
        }
        result
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner
            .verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner
            .verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        self.inner.requires_raw_public_keys()
    }
}

#[cfg(test)]
mod tests;
