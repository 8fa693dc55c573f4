//! Options of one MQTT connection.

use std::net::IpAddr;
use std::time::Duration;

use rumqttc::{AckMode, Broker, LastWill, MqttOptions, QoS, TlsConfiguration, Transport};

use super::MqttSettings;
use super::tls::{ClientTls, TlsFileError};
use super::websocket_token::{TokenError, TokenSource};
use service::settings::{ExposeSecret as _, SecretString};

const KEEP_ALIVE_SECONDS: u16 = 30;
/// Maximum number of outgoing messages in flight.
const MAX_OUTGOING_IN_FLIGHT: u16 = 10_000;
/// Maximum number of queued requests. A broker can have at most 65,535 messages in flight to one
/// client, so there is always space in the queue for the acknowledgements of all these messages.
const MAX_QUEUED_REQUESTS: usize = 70_000;
/// Maximum number of queued packets that are sent with one write. By default, `rumqttc` writes each
/// packet separately. In measurements, that used a quarter of the CPU time of `ingest`.
const MAX_PACKETS_PER_WRITE: usize = 256;
/// Maximum packet size that the MQTT specification allows. Sent packets need no smaller limit, because
/// their content is already in memory.
const MQTT_MAX_PACKET_BYTES: usize = 256 * 1024 * 1024;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Options of one connection.
#[derive(Debug, Clone)]
pub struct ConnectOptions {
    /// URL of the broker with scheme `mqtt`, `mqtts`, `ws` or `wss`.
    pub url: String,
    /// MQTT client id.
    pub client_id: String,
    /// Kind of the session: clean or persistent.
    pub session: SessionKind,
    /// Certificates for the schemes `mqtts` and `wss`.
    pub tls: ClientTls,
    /// User name and password, if the broker requires them.
    pub credentials: Option<(String, SecretString)>,
    /// Source of the token in the HTTP request that opens a WebSocket.
    pub token: Option<TokenSource>,
    /// Last will: the message that the broker publishes if the connection ends without DISCONNECT.
    pub will: Option<Will>,
    /// Maximum size in bytes of a received packet. The connection is closed when a larger packet
    /// arrives, before the packet is read.
    pub max_packet_size: usize,
    /// Maximum number of publishes, subscribes and acknowledgements that wait for the event loop.
    /// A process with thousands of connections should use a small number to save memory.
    pub max_queued_requests: usize,
    /// Timeout for opening the network connection.
    pub connect_timeout: Duration,
    /// Local address of the network connection. `None` if the operating system chooses the address.
    pub source_address: Option<IpAddr>,
}

/// Whether the broker stores the session while the client is disconnected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionKind {
    /// The broker deletes the session when the client disconnects. `rumqttc` acknowledges received
    /// messages automatically.
    Clean,
    /// The broker stores the subscriptions, and queues messages for the client. The caller must
    /// acknowledge each received message.
    Persistent,
}

/// A last will. The broker publishes it with QoS 1.
#[derive(Debug, Clone)]
pub struct Will {
    /// Topic of the last will.
    pub topic: String,
    /// Payload of the last will.
    pub payload: Vec<u8>,
    /// Whether the broker publishes the last will as a retained message.
    pub retain: bool,
}

/// The options of a connection are invalid.
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
    /// Creates the options of a connection from the configuration.
    #[must_use]
    pub fn from_config(mqtt: &MqttSettings, client_id: &str, session: SessionKind) -> Self {
        let credentials =
            (!mqtt.username.is_empty()).then(|| (mqtt.username.clone(), mqtt.password.clone()));
        let token = match (&mqtt.token_file, &mqtt.token_key) {
            (Some(file), _) => Some(TokenSource::File(file.clone())),
            (None, Some(key_file)) => Some(TokenSource::Signed {
                key_file: key_file.clone(),
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
                certificate_and_key_files: mqtt.certificate.clone().zip(mqtt.key.clone()),
            },
            credentials,
            token,
            will: None,
            max_packet_size: mqtt.max_packet_size,
            max_queued_requests: MAX_QUEUED_REQUESTS,
            connect_timeout: CONNECT_TIMEOUT,
            source_address: None,
        }
    }

    /// Converts these options to the options of `rumqttc`. Reads the certificate files and the
    /// token file, so each new connection uses their current content.
    pub(super) fn to_rumqttc_options(&self) -> Result<MqttOptions, ConnectOptionsError> {
        let invalid_url = || ConnectOptionsError::InvalidUrl(self.url.clone());
        let (scheme, authority) = self.url.split_once("://").ok_or_else(invalid_url)?;
        let client_id = self.client_id.clone();
        let mut options = match scheme {
            "mqtt" | "mqtts" => {
                let default_port = if scheme == "mqtt" { 1883 } else { 8883 };
                let (host, port) =
                    parse_host_and_port(authority, default_port).ok_or_else(invalid_url)?;
                let mut options = MqttOptions::new(client_id, (host, port));
                if scheme == "mqtts" {
                    let config = TlsConfiguration::Rustls(self.tls.to_rustls_config()?);
                    options.set_transport(Transport::tls_with_config(config));
                }
                options
            }
            "ws" => {
                let broker = Broker::websocket(&self.url).map_err(|_| invalid_url())?;
                let mut options = MqttOptions::new(client_id, broker);
                options.set_transport(Transport::Ws);
                options
            }
            "wss" => {
                let config = TlsConfiguration::Rustls(self.tls.to_rustls_config()?);
                MqttOptions::websocket_with_tls_config(client_id, &self.url, config)
                    .map_err(|_| invalid_url())?
            }
            _ => return Err(invalid_url()),
        };
        self.set_common_options(&mut options)?;
        Ok(options)
    }

    fn set_common_options(&self, options: &mut MqttOptions) -> Result<(), ConnectOptionsError> {
        let max_in_flight = u16::try_from(self.max_queued_requests).unwrap_or(u16::MAX);
        options
            .set_keep_alive(KEEP_ALIVE_SECONDS)
            .set_clean_session(self.session == SessionKind::Clean)
            .set_inflight(max_in_flight.clamp(1, MAX_OUTGOING_IN_FLIGHT))
            .set_max_request_batch(MAX_PACKETS_PER_WRITE)
            .set_max_packet_size(self.max_packet_size, MQTT_MAX_PACKET_BYTES);
        if self.session == SessionKind::Persistent {
            options.set_ack_mode(AckMode::Manual);
        }
        if let Some((user, password)) = &self.credentials {
            options.set_credentials(user, password.expose_secret().to_owned());
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
    fn a_missing_port_is_replaced_by_the_default_port() {
        let parse_with_default_port = |text| parse_host_and_port(text, 1883);
        assert_eq!(
            parse_with_default_port("broker"),
            Some(("broker".into(), 1883))
        );
        assert_eq!(
            parse_with_default_port("broker:99/"),
            Some(("broker".into(), 99))
        );
        assert_eq!(
            parse_with_default_port("[::1]:99"),
            Some(("::1".into(), 99))
        );
        assert_eq!(parse_with_default_port("[::1]"), Some(("::1".into(), 1883)));
    }

    #[test]
    fn a_malformed_host_or_port_is_rejected() {
        for text in ["", ":99", "broker:port", "[::1"] {
            assert_eq!(parse_host_and_port(text, 1883), None, "{text}");
        }
    }
}
