//! TLS configuration of the HTTP server.

use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::ring;

use super::HttpTlsSettings;
use network::tls_server::{self as tls, ServerTls, TlsError, unusable_file};

const CERTIFICATE_SETTING: &str = "http.tls.certificate";
const PRIVATE_KEY_SETTING: &str = "http.tls.key";

/// Reads and checks the certificate and the private key. Returns `None` if TLS is not configured.
///
/// # Errors
/// If a file cannot be used. The error names the setting that contains the path of the file.
pub fn read_tls(config: &HttpTlsSettings) -> Result<Option<ServerTls>, TlsError> {
    let (Some(cert_path), Some(key_path)) = (config.certificate.clone(), config.key.clone()) else {
        return Ok(None);
    };
    let watched_files = vec![cert_path.clone(), key_path.clone()];
    let load = move || {
        let chain = tls::read_certificates(CERTIFICATE_SETTING, &cert_path)?;
        for certificate in &chain {
            tls::check_valid_now(CERTIFICATE_SETTING, &cert_path, certificate)?;
        }
        let private_key = tls::read_private_key(PRIVATE_KEY_SETTING, &key_path)?;
        let mut server_config =
            ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
                .with_safe_default_protocol_versions()
                .map_err(|error| unusable_file(CERTIFICATE_SETTING, &cert_path, &error))?
                .with_no_client_auth()
                .with_single_cert(chain, private_key)
                .map_err(|error| unusable_file(PRIVATE_KEY_SETTING, &key_path, &error))?;
        server_config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(server_config)
    };
    ServerTls::new("http", watched_files, load).map(Some)
}
