//! A token in a websocket's header, where a broker wants one: read from a file, or signed by us.

use std::path::PathBuf;
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

/// Where the token of the next connection comes from.
#[derive(Debug, Clone)]
pub enum Token {
    /// The file as it is then.
    File(PathBuf),
    /// Signed (RS256) with this key.
    Signed {
        /// PEM file of an RSA key.
        key: PathBuf,
        /// Whom it names.
        client_id: String,
        /// How long it is valid.
        lifetime: Duration,
    },
}

/// There is no token to be had.
#[derive(Debug, thiserror::Error)]
#[error("{key}: {}: {problem}", file.display())]
pub struct TokenError {
    key: &'static str,
    file: PathBuf,
    problem: String,
}

impl Token {
    /// The token for a connection that is made now.
    ///
    /// # Errors
    /// When the file cannot be read, or is not a key that can sign.
    pub fn read(&self) -> Result<String, TokenError> {
        let (key, file, token) = match self {
            Self::File(file) => {
                let read = std::fs::read_to_string(file).map_err(|error| error.to_string());
                ("mqtt.token_file", file, read)
            }
            Self::Signed {
                key,
                client_id,
                lifetime,
            } => ("mqtt.token_key", key, sign(key, client_id, *lifetime)),
        };
        let bad = |problem: String| TokenError {
            key,
            file: file.clone(),
            problem,
        };
        let token = token.map_err(bad)?.trim().to_owned();
        if HeaderValue::from_str(&token).is_err() {
            return Err(bad("it does not hold a token".to_owned()));
        }
        Ok(token)
    }

    pub(super) fn header(&self) -> Result<(HeaderName, HeaderValue), TokenError> {
        let mut value =
            HeaderValue::from_str(&self.read()?).unwrap_or_else(|_| HeaderValue::from_static(""));
        value.set_sensitive(true);
        Ok((HEADER, value))
    }
}

fn sign(file: &PathBuf, client_id: &str, lifetime: Duration) -> Result<String, String> {
    let key = PrivateKeyDer::from_pem_file(file).map_err(|error| error.to_string())?;
    let pair = match &key {
        PrivateKeyDer::Pkcs8(der) => RsaKeyPair::from_pkcs8(der.secret_pkcs8_der()),
        PrivateKeyDer::Pkcs1(der) => RsaKeyPair::from_der(der.secret_pkcs1_der()),
        _ => return Err("it is not an RSA key".to_owned()),
    }
    .map_err(|error| format!("it is not an RSA key that can sign: {error}"))?;
    let expires = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        + lifetime;
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let header = part(&json!({"alg": "RS256", "typ": "JWT", "kid": KEY_ID}));
    let claims = part(&json!({
        "client-id": client_id,
        "auth-group": "admin",
        "exp": expires.as_secs(),
    }));
    let signed = format!("{header}.{claims}");
    let mut signature = vec![0; pair.public().modulus_len()];
    pair.sign(
        &RSA_PKCS1_SHA256,
        &SystemRandom::new(),
        signed.as_bytes(),
        &mut signature,
    )
    .map_err(|_| "signing failed".to_owned())?;
    Ok(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature)))
}
