//! A running connector.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::database::Database;
use super::roles::Roles;
use super::shutdown_order::Stages;
use broker::Broker;
use service::settings::SecretString;
use service::{Health, Supervisor};

/// A running connector. [`run_until`](super::run_until) runs the connector until shutdown.
pub struct App {
    /// Addresses, roles and API key of the connector.
    pub info: AppInfo,
    pub(super) supervisor: Supervisor,
    pub(super) health: Health,
    pub(super) stages: Stages,
    /// The database. In embedded mode, the data folder is locked until the `App` is dropped.
    pub(super) database: Database,
    /// The embedded broker. `None` if the connector uses an external broker.
    pub(super) broker: Option<Broker>,
    pub(super) grace_period: Duration,
}

impl App {
    /// Returns the supervisor of the connector's tasks.
    #[must_use]
    pub fn supervisor(&self) -> &Supervisor {
        &self.supervisor
    }
}

/// Addresses, roles and API key of a running connector. The startup banner prints this information.
#[derive(Debug, Clone)]
pub struct AppInfo {
    /// The roles of this process.
    pub roles: Roles,
    /// Address of the REST API, probes and metrics.
    pub http_address: SocketAddr,
    /// Whether the REST API uses TLS.
    pub uses_https: bool,
    /// Address of the listener for probes and metrics only, if there is such a listener.
    pub metrics_address: Option<SocketAddr>,
    /// Address of the embedded broker's listener without TLS, if the broker has this listener.
    pub mqtt_address: Option<SocketAddr>,
    /// Address of the embedded broker's listener with TLS, if the broker has this listener.
    pub mqtts_address: Option<SocketAddr>,
    /// Address of the embedded broker's WebSocket listener without TLS, if the broker has this
    /// listener.
    pub ws_address: Option<SocketAddr>,
    /// Address of the embedded broker's WebSocket listener with TLS, if the broker has this listener.
    pub wss_address: Option<SocketAddr>,
    /// Path of the data folder. `None` if the database is PostgreSQL.
    pub data_dir: Option<PathBuf>,
    /// API key of the caller `local`. `None` if there is no data folder, or if `api.local_key` is
    /// false.
    pub local_key: Option<SecretString>,
}
