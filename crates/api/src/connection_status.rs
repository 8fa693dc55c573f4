//! The connection status of a client in API responses.

use serde::Serialize;
use utoipa::ToSchema;

/// Whether a client is connected.
#[derive(Debug, Clone, Copy, Default, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum ConnectionStatus {
    Connected,
    #[default]
    Disconnected,
}
