//! Files in PEM form. Every error names the setting that the file stands in.

use std::path::Path;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::TlsError;

/// The bytes of a file.
///
/// # Errors
/// When it cannot be read.
pub fn read(key: &'static str, path: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(path).map_err(|source| TlsError::Unreadable {
        key,
        path: path.into(),
        source,
    })
}

/// The certificates of a file, at least one.
///
/// # Errors
/// When there is none.
pub fn certificates(
    key: &'static str,
    path: &Path,
) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let bytes = read(key, path)?;
    let chain: Vec<_> = CertificateDer::pem_slice_iter(&bytes)
        .collect::<Result<_, _>>()
        .map_err(|error| unusable(key, path, &error))?;
    if chain.is_empty() {
        return Err(unusable(key, path, &"holds no certificate in PEM form"));
    }
    Ok(chain)
}

/// The private key of a file.
///
/// # Errors
/// When there is none.
pub fn private_key(key: &'static str, path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let bytes = read(key, path)?;
    PrivateKeyDer::from_pem_slice(&bytes)
        .map_err(|_| unusable(key, path, &"holds no private key in PEM form"))
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

/// Whether a certificate is valid now.
///
/// # Errors
/// When its time is over, or has not come.
pub fn check_validity(
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
    let cure = if key.ends_with(".certificate") {
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

/// A file that is there and does not hold what it should.
#[must_use]
pub fn unusable(key: &'static str, path: &Path, problem: &dyn std::fmt::Display) -> TlsError {
    TlsError::Unusable {
        key,
        path: path.into(),
        problem: format!("cannot be used: {problem}"),
    }
}
