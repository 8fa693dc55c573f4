//! TLS configuration of the HTTP server.

use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::ring;

use crate::config::HttpTls;
use crate::tls_server::{self as tls, ServerTls, TlsError, unusable_file};

const CERTIFICATE_SETTING: &str = "http.tls.certificate";
const KEY_SETTING: &str = "http.tls.key";

/// Reads and checks certificate and private key. Returns `None` if TLS is not configured.
///
/// # Errors
/// If a file is unusable. The error names the setting of that file.
pub fn read_tls(config: &HttpTls) -> Result<Option<ServerTls>, TlsError> {
    let (Some(cert_path), Some(key_path)) = (config.certificate.clone(), config.key.clone()) else {
        return Ok(None);
    };
    let watched_files = vec![cert_path.clone(), key_path.clone()];
    let load = move || {
        let chain = tls::read_certificates(CERTIFICATE_SETTING, &cert_path)?;
        for certificate in &chain {
            tls::check_valid_now(CERTIFICATE_SETTING, &cert_path, certificate)?;
        }
        let private_key = tls::read_private_key(KEY_SETTING, &key_path)?;
        let mut server = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| unusable_file(CERTIFICATE_SETTING, &cert_path, &error))?
            .with_no_client_auth()
            .with_single_cert(chain, private_key)
            .map_err(|error| unusable_file(KEY_SETTING, &key_path, &error))?;
        server.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(server)
    };
    ServerTls::new("http", watched_files, load).map(Some)
}
