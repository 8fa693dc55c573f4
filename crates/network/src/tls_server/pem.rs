//! Reads PEM files and checks certificates. Every error names the setting that contains the
//! path of the file.

use std::path::Path;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use x509_parser::prelude::{FromDer as _, X509Certificate};
use x509_parser::time::ASN1Time;

use super::TlsError;

/// Reads a file. `setting_name` is the setting that contains the path, for error messages.
///
/// # Errors
/// When the file cannot be read.
pub fn read_file(setting_name: &'static str, path: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(path).map_err(|source| TlsError::CannotRead {
        setting_name,
        path: path.into(),
        source,
    })
}

/// Reads the certificates in a file.
///
/// # Errors
/// When the file cannot be read or contains no certificate.
pub fn read_certificates(
    setting_name: &'static str,
    path: &Path,
) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let bytes = read_file(setting_name, path)?;
    let chain: Vec<_> = CertificateDer::pem_slice_iter(&bytes)
        .collect::<Result<_, _>>()
        .map_err(|error| unusable_file(setting_name, path, &error))?;
    if chain.is_empty() {
        let problem = "the file contains no certificate in PEM format";
        return Err(unusable_file(setting_name, path, &problem));
    }
    Ok(chain)
}

/// Reads the private key in a file.
///
/// # Errors
/// When the file cannot be read or contains no private key.
pub fn read_private_key(
    setting_name: &'static str,
    path: &Path,
) -> Result<PrivateKeyDer<'static>, TlsError> {
    let bytes = read_file(setting_name, path)?;
    PrivateKeyDer::from_pem_slice(&bytes).map_err(|_| {
        let problem = "the file contains no private key in PEM format";
        unusable_file(setting_name, path, &problem)
    })
}

/// Checks that all certificates in a file are valid now. Returns the text "valid until …" with the
/// earliest expiration time.
///
/// # Errors
/// When the file cannot be read, or a certificate has expired or is not valid yet.
pub fn check_certificate_file(setting_name: &'static str, path: &Path) -> Result<String, TlsError> {
    let chain = read_certificates(setting_name, path)?;
    for certificate in &chain {
        check_valid_now(setting_name, path, certificate)?;
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
    setting_name: &'static str,
    path: &Path,
    der: &CertificateDer<'_>,
) -> Result<(), TlsError> {
    let (_, certificate) = X509Certificate::from_der(der)
        .map_err(|error| unusable_file(setting_name, path, &error))?;
    let validity = certificate.validity();
    let problem = match validity.time_to_expiration() {
        Some(_) => return Ok(()),
        None if validity.not_after < ASN1Time::now() => {
            format!("expired on {}", validity.not_after)
        }
        None => format!("is not valid before {}", validity.not_before),
    };
    let hint = if setting_name.ends_with(".certificate") {
        "replace it, for example with `cloud-connector certs issue --server`"
    } else {
        "replace it with a valid certificate"
    };
    Err(TlsError::NotValidNow {
        setting_name,
        path: path.into(),
        problem,
        hint,
    })
}

/// Returns the error for a file whose content cannot be used.
#[must_use]
pub fn unusable_file(
    setting_name: &'static str,
    path: &Path,
    problem: &dyn std::fmt::Display,
) -> TlsError {
    TlsError::Unusable {
        setting_name,
        path: path.into(),
        problem: problem.to_string(),
    }
}
