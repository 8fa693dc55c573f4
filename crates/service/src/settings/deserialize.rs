//! Deserializers for socket addresses, and for settings in which an empty string means "not set".

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Deserializer, de};

use super::PemSource;

/// Deserializes an IP address with port.
///
/// # Errors
/// When the value is not a string, or not an IP address with port.
pub fn socket_addr<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SocketAddr, D::Error> {
    parse_socket_addr(&String::deserialize(deserializer)?)
}

/// Deserializes an IP address with port. Returns `None` for an empty string.
///
/// # Errors
/// When the value is not a string, or neither empty nor an IP address with port.
pub fn optional_socket_addr<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<SocketAddr>, D::Error> {
    let text = String::deserialize(deserializer)?;
    if text.is_empty() {
        return Ok(None);
    }
    parse_socket_addr(&text).map(Some)
}

fn parse_socket_addr<E: de::Error>(text: &str) -> Result<SocketAddr, E> {
    text.parse()
        .map_err(|_| E::custom(format!("{text:?} is not an IP address with port")))
}

/// Deserializes certificates in PEM format: the path of a file, or the PEM text itself. Returns
/// `None` for an empty string.
///
/// # Errors
/// When the value is not a string.
pub fn optional_pem<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<PemSource>, D::Error> {
    let text = String::deserialize(deserializer)?;
    Ok(match text.trim_start() {
        "" => None,
        pem if pem.starts_with("-----BEGIN") => Some(PemSource::Inline(pem.to_owned())),
        path => Some(PemSource::File(path.into())),
    })
}

/// Deserializes a text. Returns `None` for an empty string.
///
/// # Errors
/// When the value is not a string.
pub fn optional_text<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<String>, D::Error> {
    let text = String::deserialize(deserializer)?;
    Ok((!text.is_empty()).then_some(text))
}

/// Deserializes a path. Returns `None` for an empty path.
///
/// # Errors
/// When the value is not a path.
pub fn optional_path<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<PathBuf>, D::Error> {
    let path = PathBuf::deserialize(deserializer)?;
    Ok((!path.as_os_str().is_empty()).then_some(path))
}
