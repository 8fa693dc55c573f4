//! Rejections by the embedded broker.

use crate::Timestamp;

/// A connection, a publish, a subscription or a last will of a client that the embedded broker
/// rejected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokerRejection {
    /// Name of the reason. The metric `cloud_connector_broker_rejections_total` has the same names.
    /// `taken_over` means that two connections with the same client id repeatedly replaced each other.
    pub reason: String,
    /// Address and port of the peer.
    pub peer: String,
    /// Time of the rejection.
    pub at: Timestamp,
}
