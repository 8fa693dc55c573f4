//! Authentication token in the HTTP request that opens a WebSocket. The token is read from a file,
//! or signed with a private key.

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

const TOKEN_HEADER: HeaderName = HeaderName::from_static("x-akamai-dcp-token");
const JWT_KEY_ID: &str = "rhcloud-connector";

/// Source of the token. The token is read or signed again for each new connection.
#[derive(Debug, Clone)]
pub enum TokenSource {
    /// A file that contains the token. The file is read for each connection.
    File(PathBuf),
    /// A JSON Web Token. For each connection, a new token is signed with RS256.
    Signed {
        /// PEM file that contains an RSA private key.
        key_file: PathBuf,
        /// Value of the token's claim `client-id`.
        client_id: String,
        /// Time until the token expires.
        ttl: Duration,
    },
}

/// The token cannot be read or signed.
#[derive(Debug, thiserror::Error)]
#[error("{setting_name}: cannot use {}: {problem}", file.display())]
pub struct TokenError {
    setting_name: &'static str,
    file: PathBuf,
    problem: String,
}

impl TokenSource {
    /// Returns a token for a new connection.
    ///
    /// # Errors
    /// When the file cannot be read, contains no token, or contains no usable private key.
    pub fn token(&self) -> Result<String, TokenError> {
        self.token_and_header_value().map(|(token, _)| token)
    }

    pub(super) fn header(&self) -> Result<(HeaderName, HeaderValue), TokenError> {
        let (_, mut value) = self.token_and_header_value()?;
        value.set_sensitive(true);
        Ok((TOKEN_HEADER, value))
    }

    /// Returns the token twice: first as text, then as a header value.
    fn token_and_header_value(&self) -> Result<(String, HeaderValue), TokenError> {
        let (setting_name, file, token) = match self {
            Self::File(file) => {
                let content = std::fs::read_to_string(file).map_err(|error| error.to_string());
                ("mqtt.token_file", file, content)
            }
            Self::Signed {
                key_file,
                client_id,
                ttl,
            } => (
                "mqtt.token_key",
                key_file,
                sign_token(key_file, client_id, *ttl),
            ),
        };
        let token_error = |problem: String| TokenError {
            setting_name,
            file: file.clone(),
            problem,
        };
        let token = token.map_err(token_error)?.trim().to_owned();
        match HeaderValue::from_str(&token) {
            Ok(value) => Ok((token, value)),
            Err(_) => Err(token_error("the file does not contain a token".to_owned())),
        }
    }
}

fn sign_token(key_file: &Path, client_id: &str, ttl: Duration) -> Result<String, String> {
    let key = PrivateKeyDer::from_pem_file(key_file).map_err(|error| error.to_string())?;
    let key_pair = match &key {
        PrivateKeyDer::Pkcs8(der) => RsaKeyPair::from_pkcs8(der.secret_pkcs8_der()),
        PrivateKeyDer::Pkcs1(der) => RsaKeyPair::from_der(der.secret_pkcs1_der()),
        _ => return Err("the file does not contain an RSA private key".to_owned()),
    }
    .map_err(|error| format!("the RSA private key cannot sign: {error}"))?;
    let expiration = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        + ttl;
    let encode_base64 = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let header = encode_base64(&json!({"alg": "RS256", "typ": "JWT", "kid": JWT_KEY_ID}));
    let claims = encode_base64(&json!({
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
