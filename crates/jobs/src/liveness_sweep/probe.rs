//! How the sweep reaches clients and the broker.

use std::time::Duration;

use async_trait::async_trait;

use domain::DialectName;
use store::WatchedConnection;

/// How the sweep finds out whether a client is connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProbeMethod {
    /// The client answers a ping.
    Ping,
    /// The broker has the retained handshake of the client.
    RetainedHandshake,
}

/// Reaches clients and the broker.
#[async_trait]
pub trait LivenessProbe: Send + Sync + 'static {
    /// Returns the method for clients of a dialect. Returns `None` for an unknown dialect, whose
    /// connections the sweep does not end.
    fn method(&self, dialect: &DialectName) -> Option<ProbeMethod>;

    /// Sends a ping to a client. Returns when the broker has acknowledged the message.
    ///
    /// # Errors
    /// When the broker has not acknowledged the message. The error contains the reason.
    async fn ping(&self, connection: &WatchedConnection) -> Result<(), String>;

    /// Returns whether the broker has a retained handshake of a client.
    ///
    /// # Errors
    /// When the broker did not respond. The error contains the reason.
    async fn has_retained_handshake(&self, connection: &WatchedConnection) -> Result<bool, String>;

    /// Returns how long the broker has been running. Returns `None` if the broker does not publish this
    /// time, or is not reachable.
    async fn broker_uptime(&self) -> Option<Duration>;
}
