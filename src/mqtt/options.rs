//! Whom to connect to, and as whom.

use std::path::PathBuf;
use std::time::Duration;

use rumqttc::{AckMode, Broker, LastWill, MqttOptions, QoS, TlsConfiguration, Transport};

use super::tls::{ClientTls, TlsFileError};
use super::websocket_token::{Token, TokenError};
use crate::config;

const KEEP_ALIVE_SECONDS: u16 = 30;
/// What may be under way from us to the broker at most.
const OUTGOING_IN_FLIGHT: u16 = 10_000;
/// More than a broker has in flight to us, so that whoever acknowledges never waits for whoever
/// polls.
const REQUESTS: usize = 70_000;
/// So many packets that wait go in one write. By default the crate writes each alone, which was a
/// quarter of the work of `ingest`, and wakes the broker for each.
const WRITTEN_AT_ONCE: usize = 256;
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// One connection's settings.
#[derive(Debug, Clone)]
pub struct Options {
    /// `mqtt://`, `mqtts://`, `ws://` or `wss://`.
    pub url: String,
    /// Our client id.
    pub client_id: String,
    /// What the broker keeps of us.
    pub session: Session,
    /// Certificates, for `mqtts://` and `wss://`.
    pub tls: ClientTls,
    /// User name and password.
    pub credentials: Option<(String, config::Secret)>,
    /// A token in a websocket's header.
    pub token: Option<Token>,
    /// The last will.
    pub will: Option<Will>,
    /// Largest packet, both ways.
    pub max_packet_size: usize,
    /// Publishes, subscribes and acknowledgements that may wait for the link. A process that is
    /// thousands of clients keeps it small.
    pub requests: usize,
    /// How long to wait for the broker to let us in.
    pub connect_within: Duration,
}

/// What the broker keeps of us while we are away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Session {
    /// Nothing. Messages are acknowledged as they come.
    Clean,
    /// Subscriptions and what they brought. Messages are acknowledged by us, when we have them.
    Persistent,
}

/// A last will, published with QoS 1.
#[derive(Debug, Clone)]
pub struct Will {
    /// Where.
    pub topic: String,
    /// What.
    pub payload: Vec<u8>,
    /// Whether the broker keeps it for whoever subscribes later.
    pub retain: bool,
}

/// The settings cannot work.
#[derive(Debug, thiserror::Error)]
pub enum OptionsError {
    /// The address is malformed.
    #[error("mqtt.url: {0:?} is not HOST:PORT behind its scheme; for example mqtts://broker:8883")]
    Url(String),
    /// A certificate file cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsFileError),
    /// The token cannot be had.
    #[error(transparent)]
    Token(#[from] TokenError),
}

impl Options {
    /// From the configuration, for a connection with this id.
    #[must_use]
    pub fn from_config(mqtt: &config::Mqtt, client_id: &str, session: Session) -> Self {
        let credentials =
            (!mqtt.username.is_empty()).then(|| (mqtt.username.clone(), mqtt.password.clone()));
        let lifetime = mqtt.token_ttl.get();
        let token = match (&mqtt.token_file, &mqtt.token_key) {
            (Some(file), _) => Some(Token::File(file.clone())),
            (None, Some(key)) => Some(Token::Signed {
                key: key.clone(),
                client_id: client_id.to_owned(),
                lifetime,
            }),
            (None, None) => None,
        };
        Self {
            url: mqtt.url.clone().unwrap_or_default(),
            client_id: client_id.to_owned(),
            session,
            tls: ClientTls {
                ca: mqtt.ca.clone(),
                identity: pair(mqtt.certificate.as_ref(), mqtt.key.as_ref()),
            },
            credentials,
            token,
            will: None,
            max_packet_size: mqtt.max_packet_size,
            requests: REQUESTS,
            connect_within: CONNECT_WITHIN,
        }
    }

    /// As the crate wants it. Files are read now: each connection has them as they are then.
    pub(super) fn build(&self) -> Result<MqttOptions, OptionsError> {
        let malformed = || OptionsError::Url(self.url.clone());
        let (scheme, rest) = self.url.split_once("://").ok_or_else(malformed)?;
        let id = self.client_id.clone();
        let mut options = match scheme {
            "mqtt" | "mqtts" => {
                let default = if scheme == "mqtt" { 1883 } else { 8883 };
                let (host, port) = host_and_port(rest, default).ok_or_else(malformed)?;
                let mut options = MqttOptions::new(id, (host, port));
                if scheme == "mqtts" {
                    let config = TlsConfiguration::Rustls(self.tls.config()?);
                    options.set_transport(Transport::tls_with_config(config));
                }
                options
            }
            "ws" => {
                let broker = Broker::websocket(&self.url).map_err(|_| malformed())?;
                let mut options = MqttOptions::new(id, broker);
                options.set_transport(Transport::Ws);
                options
            }
            "wss" => {
                let config = TlsConfiguration::Rustls(self.tls.config()?);
                MqttOptions::websocket_with_tls_config(id, &self.url, config)
                    .map_err(|_| malformed())?
            }
            _ => return Err(malformed()),
        };
        self.finish(&mut options)?;
        Ok(options)
    }

    fn finish(&self, options: &mut MqttOptions) -> Result<(), OptionsError> {
        let requests = u16::try_from(self.requests).unwrap_or(u16::MAX);
        options
            .set_keep_alive(KEEP_ALIVE_SECONDS)
            .set_clean_session(self.session == Session::Clean)
            .set_inflight(requests.clamp(1, OUTGOING_IN_FLIGHT))
            .set_max_request_batch(WRITTEN_AT_ONCE)
            .set_max_packet_size(self.max_packet_size, self.max_packet_size);
        if self.session == Session::Persistent {
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

fn pair(certificate: Option<&PathBuf>, key: Option<&PathBuf>) -> Option<(PathBuf, PathBuf)> {
    Some((certificate?.clone(), key?.clone()))
}

/// `host`, `host:port`, `[::1]:port`.
fn host_and_port(text: &str, default: u16) -> Option<(String, u16)> {
    let text = text.trim_end_matches('/');
    if let Some(inner) = text.strip_prefix('[') {
        let (host, rest) = inner.split_once(']')?;
        let port = match rest.strip_prefix(':') {
            Some(port) => port.parse().ok()?,
            None => default,
        };
        return Some((host.to_owned(), port));
    }
    match text.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() => Some((host.to_owned(), port.parse().ok()?)),
        Some(_) => None,
        None if text.is_empty() => None,
        None => Some((text.to_owned(), default)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_have_ports_or_the_scheme_has_one_for_them() {
        let read = |text| host_and_port(text, 1883);
        assert_eq!(read("broker"), Some(("broker".into(), 1883)));
        assert_eq!(read("broker:99/"), Some(("broker".into(), 99)));
        assert_eq!(read("[::1]:99"), Some(("::1".into(), 99)));
        assert_eq!(read("[::1]"), Some(("::1".into(), 1883)));
        for bad in ["", ":99", "broker:port", "[::1"] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
