//! Authentication token in the HTTP request that opens a WebSocket: read from a file, or signed
//! with a private key.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{HeaderName, HeaderValue};
use ring::rand::SystemRandom;
use ring::signature::{RSA_PKCS1_SHA256, RsaKeyPair};
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::{Value, json};

const HEADER: HeaderName = HeaderName::from_static("x-akamai-dcp-token");
const KEY_ID: &str = "rhcloud-connector";

/// Where the token of each new connection comes from.
#[derive(Debug, Clone)]
pub enum TokenSource {
    /// The current content of a file.
    File(PathBuf),
    /// A JSON Web Token that is signed (RS256) for each connection.
    Signed {
        /// PEM file with an RSA private key.
        key: PathBuf,
        /// Value of the claim `client-id`.
        client_id: String,
        /// Time until the token expires.
        ttl: Duration,
    },
}

/// The token cannot be read or signed.
#[derive(Debug, thiserror::Error)]
#[error("{key}: cannot use {}: {problem}", file.display())]
pub struct TokenError {
    key: &'static str,
    file: PathBuf,
    problem: String,
}

impl TokenSource {
    /// Returns a token for a new connection.
    ///
    /// # Errors
    /// When the file cannot be read, or contains neither a token nor a usable private key.
    pub fn token(&self) -> Result<String, TokenError> {
        self.header_value().map(|(token, _)| token)
    }

    pub(super) fn header(&self) -> Result<(HeaderName, HeaderValue), TokenError> {
        let (_, mut value) = self.header_value()?;
        value.set_sensitive(true);
        Ok((HEADER, value))
    }

    fn header_value(&self) -> Result<(String, HeaderValue), TokenError> {
        let (key, file, token) = match self {
            Self::File(file) => {
                let content = std::fs::read_to_string(file).map_err(|error| error.to_string());
                ("mqtt.token_file", file, content)
            }
            Self::Signed {
                key,
                client_id,
                ttl,
            } => ("mqtt.token_key", key, sign(key, client_id, *ttl)),
        };
        let error = |problem: String| TokenError {
            key,
            file: file.clone(),
            problem,
        };
        let token = token.map_err(error)?.trim().to_owned();
        match HeaderValue::from_str(&token) {
            Ok(value) => Ok((token, value)),
            Err(_) => Err(error("it does not contain a token".to_owned())),
        }
    }
}

fn sign(key_file: &Path, client_id: &str, ttl: Duration) -> Result<String, String> {
    let key = PrivateKeyDer::from_pem_file(key_file).map_err(|error| error.to_string())?;
    let key_pair = match &key {
        PrivateKeyDer::Pkcs8(der) => RsaKeyPair::from_pkcs8(der.secret_pkcs8_der()),
        PrivateKeyDer::Pkcs1(der) => RsaKeyPair::from_der(der.secret_pkcs1_der()),
        _ => return Err("it is not an RSA private key".to_owned()),
    }
    .map_err(|error| format!("it is not an RSA private key that can sign: {error}"))?;
    let expiration = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        + ttl;
    let encode = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let header = encode(&json!({"alg": "RS256", "typ": "JWT", "kid": KEY_ID}));
    let claims = encode(&json!({
        "client-id": client_id,
        "auth-group": "admin",
        "exp": expiration.as_secs(),
    }));
    let signed_part = format!("{header}.{claims}");
    let mut signature = vec![0; key_pair.public().modulus_len()];
    key_pair
        .sign(
            &RSA_PKCS1_SHA256,
            &SystemRandom::new(),
            signed_part.as_bytes(),
            &mut signature,
        )
        .map_err(|_| "signing failed".to_owned())?;
    let signature = URL_SAFE_NO_PAD.encode(signature);
    Ok(format!("{signed_part}.{signature}"))
}
