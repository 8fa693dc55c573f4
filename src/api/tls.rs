//! The certificate of the REST interface.

use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::ring;

use crate::config::HttpTls;
use crate::tls_server::{self as tls, ServerTls, TlsError, unusable};

const CERTIFICATE: &str = "http.tls.certificate";
const KEY: &str = "http.tls.key";

/// Reads and checks the files; none where the configuration names none.
///
/// # Errors
/// When one of them cannot be used; names its setting.
pub fn read_tls(settings: &HttpTls) -> Result<Option<ServerTls>, TlsError> {
    let (Some(certificate), Some(key)) = (settings.certificate.clone(), settings.key.clone())
    else {
        return Ok(None);
    };
    let watched = vec![certificate.clone(), key.clone()];
    let load = move || {
        let chain = tls::certificates(CERTIFICATE, &certificate)?;
        for one in &chain {
            tls::check_validity(CERTIFICATE, &certificate, one)?;
        }
        let secret = tls::private_key(KEY, &key)?;
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| unusable(CERTIFICATE, &certificate, &error))?
            .with_no_client_auth()
            .with_single_cert(chain, secret)
            .map_err(|error| unusable(KEY, &key, &error))?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    };
    ServerTls::new("http.tls", watched, load).map(Some)
}
