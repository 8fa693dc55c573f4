//! Settings of the section `[broker]`.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::Deserialize;

use super::deserialize::{optional_path, optional_socket_addr};
use crate::config::HumanDuration;

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Broker {
    #[serde(deserialize_with = "optional_socket_addr")]
    pub listen: Option<SocketAddr>,
    pub max_connections: usize,
    pub max_connections_per_address: usize,
    pub max_packet_size: usize,
    pub connect_limit: ConnectLimit,
    pub handshake_timeout: HumanDuration,
    pub ack_timeout: HumanDuration,
    pub reconnect_grace: HumanDuration,
    pub tls: BrokerTls,
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
pub struct BrokerTls {
    #[serde(deserialize_with = "optional_socket_addr")]
    pub listen: Option<SocketAddr>,
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
