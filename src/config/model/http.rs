//! Settings of the section `[http]`.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::Deserialize;

use super::deserialize::{optional_path, optional_socket_addr, socket_addr};
use crate::config::HumanDuration;

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Http {
    #[serde(deserialize_with = "socket_addr")]
    pub listen: SocketAddr,
    pub base_path: String,
    pub max_body_bytes: usize,
    pub request_timeout: HumanDuration,
    #[serde(deserialize_with = "optional_socket_addr")]
    pub metrics_listen: Option<SocketAddr>,
    pub access_log: bool,
    pub tls: HttpTls,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpTls {
    #[serde(deserialize_with = "optional_path")]
    pub certificate: Option<PathBuf>,
    #[serde(deserialize_with = "optional_path")]
    pub key: Option<PathBuf>,
    pub reload_interval: HumanDuration,
}
