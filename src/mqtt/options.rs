//! Options of one MQTT connection.

use std::time::Duration;

use rumqttc::{AckMode, Broker, LastWill, MqttOptions, QoS, TlsConfiguration, Transport};

use super::tls::{ClientTls, TlsFileError};
use super::websocket_token::{TokenError, TokenSource};
use crate::config;

const KEEP_ALIVE_SECONDS: u16 = 30;
/// Maximum number of outgoing messages in flight.
const MAX_OUTGOING_IN_FLIGHT: u16 = 10_000;
/// More than the 65,535 messages that a broker can have in flight to one client, so queuing their
/// acknowledgements never blocks.
const MAX_QUEUED_REQUESTS: usize = 70_000;
/// Maximum number of queued packets that one write sends. By default `rumqttc` writes each packet
/// separately, which took a quarter of the CPU time of `ingest`.
const MAX_PACKETS_PER_WRITE: usize = 256;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Options of one connection.
#[derive(Debug, Clone)]
pub struct ConnectOptions {
    /// URL of the broker with scheme `mqtt`, `mqtts`, `ws` or `wss`.
    pub url: String,
    /// MQTT client ID.
    pub client_id: String,
    /// Clean or persistent session.
    pub session: SessionKind,
    /// Certificates, for `mqtts` and `wss`.
    pub tls: ClientTls,
    /// User name and password.
    pub credentials: Option<(String, config::Secret)>,
    /// Token for the HTTP request that opens a WebSocket.
    pub token: Option<TokenSource>,
    /// The last will.
    pub will: Option<Will>,
    /// Maximum packet size in bytes, in both directions.
    pub max_packet_size: usize,
    /// Maximum number of publishes, subscribes and acknowledgements that wait for the event loop.
    /// Processes with thousands of connections need a small value to save memory.
    pub max_queued_requests: usize,
    /// Timeout for opening the network connection.
    pub connect_timeout: Duration,
}

/// Whether the broker keeps the session while the client is disconnected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionKind {
    /// The broker keeps nothing. Received messages are acknowledged automatically.
    Clean,
    /// The broker keeps subscriptions and queued messages. The caller acknowledges each received
    /// message.
    Persistent,
}

/// A last will, published with QoS 1.
#[derive(Debug, Clone)]
pub struct Will {
    /// Topic of the last will.
    pub topic: String,
    /// Payload of the last will.
    pub payload: Vec<u8>,
    /// Whether the broker retains the last will.
    pub retain: bool,
}

/// The options are invalid.
#[derive(Debug, thiserror::Error)]
pub enum ConnectOptionsError {
    /// The URL is malformed.
    #[error("mqtt.url: invalid URL {0:?}; use SCHEME://HOST:PORT, such as mqtts://broker:8883")]
    InvalidUrl(String),
    /// A certificate file cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsFileError),
    /// The token cannot be read or signed.
    #[error(transparent)]
    Token(#[from] TokenError),
}

impl ConnectOptions {
    /// Creates options from the configuration, with this client ID.
    #[must_use]
    pub fn from_config(mqtt: &config::Mqtt, client_id: &str, session: SessionKind) -> Self {
        let credentials =
            (!mqtt.username.is_empty()).then(|| (mqtt.username.clone(), mqtt.password.clone()));
        let token = match (&mqtt.token_file, &mqtt.token_key) {
            (Some(file), _) => Some(TokenSource::File(file.clone())),
            (None, Some(key)) => Some(TokenSource::Signed {
                key: key.clone(),
                client_id: client_id.to_owned(),
                ttl: mqtt.token_ttl.get(),
            }),
            (None, None) => None,
        };
        Self {
            url: mqtt.url.clone().unwrap_or_default(),
            client_id: client_id.to_owned(),
            session,
            tls: ClientTls {
                ca: mqtt.ca.clone(),
                identity: mqtt.certificate.clone().zip(mqtt.key.clone()),
            },
            credentials,
            token,
            will: None,
            max_packet_size: mqtt.max_packet_size,
            max_queued_requests: MAX_QUEUED_REQUESTS,
            connect_timeout: CONNECT_TIMEOUT,
        }
    }

    /// Converts to the options of `rumqttc`. Reads certificate and token files, so each connection
    /// uses their current content.
    pub(super) fn build(&self) -> Result<MqttOptions, ConnectOptionsError> {
        let invalid_url = || ConnectOptionsError::InvalidUrl(self.url.clone());
        let (scheme, authority) = self.url.split_once("://").ok_or_else(invalid_url)?;
        let id = self.client_id.clone();
        let mut options = match scheme {
            "mqtt" | "mqtts" => {
                let default_port = if scheme == "mqtt" { 1883 } else { 8883 };
                let (host, port) =
                    parse_host_and_port(authority, default_port).ok_or_else(invalid_url)?;
                let mut options = MqttOptions::new(id, (host, port));
                if scheme == "mqtts" {
                    let config = TlsConfiguration::Rustls(self.tls.config()?);
                    options.set_transport(Transport::tls_with_config(config));
                }
                options
            }
            "ws" => {
                let broker = Broker::websocket(&self.url).map_err(|_| invalid_url())?;
                let mut options = MqttOptions::new(id, broker);
                options.set_transport(Transport::Ws);
                options
            }
            "wss" => {
                let config = TlsConfiguration::Rustls(self.tls.config()?);
                MqttOptions::websocket_with_tls_config(id, &self.url, config)
                    .map_err(|_| invalid_url())?
            }
            _ => return Err(invalid_url()),
        };
        self.set_common_options(&mut options)?;
        Ok(options)
    }

    fn set_common_options(&self, options: &mut MqttOptions) -> Result<(), ConnectOptionsError> {
        let in_flight = u16::try_from(self.max_queued_requests).unwrap_or(u16::MAX);
        options
            .set_keep_alive(KEEP_ALIVE_SECONDS)
            .set_clean_session(self.session == SessionKind::Clean)
            .set_inflight(in_flight.clamp(1, MAX_OUTGOING_IN_FLIGHT))
            .set_max_request_batch(MAX_PACKETS_PER_WRITE)
            .set_max_packet_size(self.max_packet_size, self.max_packet_size);
        if self.session == SessionKind::Persistent {
            options.set_ack_mode(AckMode::Manual);
        }
        if let Some((user, password)) = &self.credentials {
            options.set_credentials(user, password.expose().to_owned());
        }
        if let Some(will) = &self.will {
            let (payload, retain) = (will.payload.clone(), will.retain);
            options.set_last_will(LastWill::new(
                &will.topic,
                payload,
                QoS::AtLeastOnce,
                retain,
            ));
        }
        if let Some(token) = &self.token {
            let (name, value) = token.header()?;
            options.set_request_modifier(move |mut request| {
                request.headers_mut().insert(name.clone(), value.clone());
                std::future::ready(request)
            });
        }
        Ok(())
    }
}

/// Parses `host`, `host:port`, `[ipv6]` or `[ipv6]:port`.
fn parse_host_and_port(text: &str, default_port: u16) -> Option<(String, u16)> {
    let text = text.trim_end_matches('/');
    if let Some(inner) = text.strip_prefix('[') {
        let (host, rest) = inner.split_once(']')?;
        let port = match rest.strip_prefix(':') {
            Some(port) => port.parse().ok()?,
            None => default_port,
        };
        return Some((host.to_owned(), port));
    }
    match text.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() => Some((host.to_owned(), port.parse().ok()?)),
        Some(_) => None,
        None if text.is_empty() => None,
        None => Some((text.to_owned(), default_port)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_port_is_the_default_port() {
        let parse = |text| parse_host_and_port(text, 1883);
        assert_eq!(parse("broker"), Some(("broker".into(), 1883)));
        assert_eq!(parse("broker:99/"), Some(("broker".into(), 99)));
        assert_eq!(parse("[::1]:99"), Some(("::1".into(), 99)));
        assert_eq!(parse("[::1]"), Some(("::1".into(), 1883)));
    }

    #[test]
    fn malformed_host_and_port_is_rejected() {
        for text in ["", ":99", "broker:port", "[::1"] {
            assert_eq!(parse_host_and_port(text, 1883), None, "{text}");
        }
    }
}
