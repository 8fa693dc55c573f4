//! Reading PEM files and checking certificates. Every error names the configuration key of the
//! file.

use std::path::Path;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use x509_parser::prelude::{FromDer as _, X509Certificate};
use x509_parser::time::ASN1Time;

use super::TlsError;

/// Reads a file.
///
/// # Errors
/// When the file cannot be read.
pub fn read_file(key: &'static str, path: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(path).map_err(|source| TlsError::CannotRead {
        key,
        path: path.into(),
        source,
    })
}

/// Reads the certificates in a file.
///
/// # Errors
/// When the file cannot be read or contains no certificate.
pub fn read_certificates(
    key: &'static str,
    path: &Path,
) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let bytes = read_file(key, path)?;
    let chain: Vec<_> = CertificateDer::pem_slice_iter(&bytes)
        .collect::<Result<_, _>>()
        .map_err(|error| unusable_file(key, path, &error))?;
    if chain.is_empty() {
        let problem = "the file contains no certificate in PEM format";
        return Err(unusable_file(key, path, &problem));
    }
    Ok(chain)
}

/// Reads the private key in a file.
///
/// # Errors
/// When the file cannot be read or contains no private key.
pub fn read_private_key(
    key: &'static str,
    path: &Path,
) -> Result<PrivateKeyDer<'static>, TlsError> {
    let bytes = read_file(key, path)?;
    PrivateKeyDer::from_pem_slice(&bytes).map_err(|_| {
        let problem = "the file contains no private key in PEM format";
        unusable_file(key, path, &problem)
    })
}

/// Checks that all certificates in a file are valid now. Returns "valid until …" with the earliest
/// expiration time.
///
/// # Errors
/// When the file cannot be read, or a certificate has expired or is not valid yet.
pub fn check_certificate_file(key: &'static str, path: &Path) -> Result<String, TlsError> {
    let chain = read_certificates(key, path)?;
    for certificate in &chain {
        check_valid_now(key, path, certificate)?;
    }
    let expiration = chain
        .iter()
        .filter_map(|der| X509Certificate::from_der(der).ok())
        .map(|(_, certificate)| certificate.validity().not_after)
        .min_by_key(ASN1Time::timestamp);
    Ok(expiration.map_or_else(String::new, |expiration| {
        format!("valid until {expiration}")
    }))
}

/// Checks that a certificate is valid now.
///
/// # Errors
/// When the certificate has expired or is not valid yet.
pub fn check_valid_now(
    key: &'static str,
    path: &Path,
    der: &CertificateDer<'_>,
) -> Result<(), TlsError> {
    let (_, certificate) =
        X509Certificate::from_der(der).map_err(|error| unusable_file(key, path, &error))?;
    let validity = certificate.validity();
    let problem = match validity.time_to_expiration() {
        Some(_) => return Ok(()),
        None if validity.not_after < ASN1Time::now() => {
            format!("expired on {}", validity.not_after)
        }
        None => format!("is not valid before {}", validity.not_before),
    };
    let hint = if key.ends_with(".certificate") {
        "replace it, for example with `cloud-connector certs issue --server`"
    } else {
        "replace it with a valid one"
    };
    Err(TlsError::NotValidNow {
        key,
        path: path.into(),
        problem,
        hint,
    })
}

/// Creates an error for a file that was read but has no usable content.
#[must_use]
pub fn unusable_file(key: &'static str, path: &Path, problem: &dyn std::fmt::Display) -> TlsError {
    TlsError::Unusable {
        key,
        path: path.into(),
        problem: problem.to_string(),
    }
}
