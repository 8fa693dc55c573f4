//! Settings of the section `[broker]`.
#![allow(missing_docs, reason = "config.default.toml documents every setting")]

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::Deserialize;

use service::settings::deserialize::{optional_path, optional_socket_addr, optional_text};
use service::settings::{
    HumanDuration, InvalidValue, require_nonzero_connection_limit, require_nonzero_duration,
};

const MIN_PACKET_BYTES: usize = 1024;
/// Maximum packet size that the MQTT specification allows.
const MAX_PACKET_BYTES: usize = 256 * 1024 * 1024;

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BrokerSettings {
    #[serde(deserialize_with = "optional_socket_addr")]
    pub listen: Option<SocketAddr>,
    pub max_connections: usize,
    pub max_connections_per_address: usize,
    pub max_pending_connections: usize,
    pub max_packet_size: usize,
    pub connect_limit: ConnectLimit,
    pub handshake_timeout: HumanDuration,
    pub packet_timeout: HumanDuration,
    pub ack_timeout: HumanDuration,
    pub reconnect_grace: HumanDuration,
    pub websocket: BrokerWebSocketSettings,
    pub tls: BrokerTlsSettings,
}

impl BrokerSettings {
    /// Checks the values that must be valid even if the deployment has an external broker.
    ///
    /// # Errors
    /// When a value is not allowed. Only the first problem is reported.
    pub fn validate(&self) -> Result<(), InvalidValue> {
        require_nonzero_duration("broker.handshake_timeout", self.handshake_timeout)?;
        require_nonzero_duration("broker.packet_timeout", self.packet_timeout)?;
        require_nonzero_duration("broker.ack_timeout", self.ack_timeout)?;
        require_nonzero_duration("broker.tls.reload_interval", self.tls.reload_interval)?;
        require_nonzero_connection_limit("broker.max_connections", self.max_connections)?;
        require_nonzero_connection_limit(
            "broker.max_connections_per_address",
            self.max_connections_per_address,
        )?;
        require_nonzero_connection_limit(
            "broker.max_pending_connections",
            self.max_pending_connections,
        )
    }

    /// Checks the values that are used only if the deployment has the embedded broker.
    ///
    /// # Errors
    /// When a value is not allowed. Only the first problem is reported.
    pub fn validate_for_embedded_broker(&self) -> Result<(), InvalidValue> {
        require_loopback("broker.listen", self.listen)?;
        require_loopback("broker.websocket.listen", self.websocket.listen)?;
        if self.listen.is_none() && self.websocket.listen.is_none() && !self.tls.is_enabled() {
            return Err(InvalidValue::new(
                "broker.listen",
                "neither broker.listen nor broker.tls.listen is set, so no client could connect",
                "set at least one of the two settings",
            ));
        }
        self.websocket.validate()?;
        let rate = self.connect_limit.per_second;
        if !(rate.is_finite() && rate > 0.0) {
            return Err(InvalidValue::new(
                "broker.connect_limit.per_second",
                format!("{rate} is not a valid rate"),
                "set it to a number of connection attempts per second above 0",
            ));
        }
        if self.connect_limit.burst == 0 {
            return Err(InvalidValue::new(
                "broker.connect_limit.burst",
                "0 would reject all connections",
                "set it to 1 or more",
            ));
        }
        if !(MIN_PACKET_BYTES..=MAX_PACKET_BYTES).contains(&self.max_packet_size) {
            return Err(InvalidValue::new(
                "broker.max_packet_size",
                format!("{} is out of range", self.max_packet_size),
                format!("set it to {MIN_PACKET_BYTES} to {MAX_PACKET_BYTES} bytes"),
            ));
        }
        self.tls.validate()
    }
}

/// Checks that a listener without TLS is not reachable from other machines.
fn require_loopback(
    setting_name: &'static str,
    address: Option<SocketAddr>,
) -> Result<(), InvalidValue> {
    match address {
        Some(address) if !address.ip().is_loopback() => Err(InvalidValue::new(
            setting_name,
            format!(
                "{address} is reachable from other machines, and without TLS any machine could \
                 impersonate any client"
            ),
            "use a loopback address, and set broker.tls.listen for other machines",
        )),
        _ => Ok(()),
    }
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BrokerWebSocketSettings {
    #[serde(deserialize_with = "optional_socket_addr")]
    pub listen: Option<SocketAddr>,
    #[serde(deserialize_with = "optional_text")]
    pub path: Option<String>,
}

impl BrokerWebSocketSettings {
    fn validate(&self) -> Result<(), InvalidValue> {
        match &self.path {
            Some(path) if !path.starts_with('/') => Err(InvalidValue::new(
                "broker.websocket.path",
                format!("{path:?} does not begin with a slash"),
                "set it to a path such as \"/mqtt\", or to \"\" to accept any path",
            )),
            _ => Ok(()),
        }
    }
}

/// Rate limit (token bucket) for the connection attempts of one client.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConnectLimit {
    pub burst: u32,
    pub per_second: f64,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BrokerTlsSettings {
    #[serde(deserialize_with = "optional_socket_addr")]
    pub listen: Option<SocketAddr>,
    #[serde(deserialize_with = "optional_socket_addr")]
    pub websocket_listen: Option<SocketAddr>,
    #[serde(deserialize_with = "optional_path")]
    pub certificate: Option<PathBuf>,
    #[serde(deserialize_with = "optional_path")]
    pub key: Option<PathBuf>,
    #[serde(deserialize_with = "optional_path")]
    pub client_ca: Option<PathBuf>,
    #[serde(deserialize_with = "optional_path")]
    pub crl: Option<PathBuf>,
    pub reload_interval: HumanDuration,
}

impl BrokerTlsSettings {
    /// Returns whether the broker has a listener with TLS.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        self.listen.is_some() || self.websocket_listen.is_some()
    }

    fn validate(&self) -> Result<(), InvalidValue> {
        if !self.is_enabled() {
            return Ok(());
        }
        let required = [
            ("broker.tls.certificate", &self.certificate),
            ("broker.tls.key", &self.key),
            ("broker.tls.client_ca", &self.client_ca),
        ];
        for (setting_name, path) in required {
            if path.is_none() {
                return Err(InvalidValue::new(
                    setting_name,
                    "it is required when broker.tls.listen or broker.tls.websocket_listen is set",
                    "set it to a PEM file; `cloud-connector certs init` creates all required files",
                ));
            }
        }
        Ok(())
    }
}
