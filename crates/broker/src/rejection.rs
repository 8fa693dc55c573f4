//! Reasons for which the broker rejects a connection, a publish or a subscription.

/// Why the broker rejected a connection, a publish or a subscription. Used as the label `reason` of
/// the metric `cloud_connector_broker_rejections_total`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RejectionReason {
    /// `broker.max_connections` or `broker.max_connections_per_address` is reached.
    TooManyConnections,
    /// `broker.max_pending_connections` is reached, and all pending connections are new.
    TooManyPendingConnections,
    /// `broker.max_pending_connections` was reached, and a new connection replaced this connection
    /// before its CONNECT packet was complete.
    PendingConnectionReplaced,
    TlsHandshakeFailed,
    /// The TLS handshake took longer than `broker.handshake_timeout`.
    TlsHandshakeTimeout,
    /// The client certificate does not have exactly one common name that is a valid client id.
    NoCommonName,
    ShuttingDown,
    InvalidClientId,
    /// The client id differs from the common name of the client certificate.
    CnMismatch,
    /// The client exceeded `broker.connect_limit`.
    RateLimited,
    /// The message sink is overloaded, or a large packet found no memory within
    /// `broker.packet_timeout`. The usual cause is that the database is slow or unavailable.
    Overloaded,
    ForbiddenWillTopic,
    /// The last will is not an offline message. The connection is accepted, but the broker will not
    /// publish the last will.
    WillNotOffline,
    /// The first packet of the connection is not a CONNECT packet.
    NoConnectPacket,
    /// The CONNECT packets of open connections use too much memory. Only CONNECT packets of more
    /// than 4 KiB are rejected for this reason.
    TooManyLargeConnectPackets,
    /// The packet exceeds `broker.max_packet_size`, or the lower limit of its packet type.
    PacketTooLarge,
    /// The client did not complete a large packet within `broker.packet_timeout`, or sent nothing
    /// for one second while other packets waited for memory.
    PacketTimeout,
    /// The client sent a second CONNECT packet on the same connection.
    RepeatedConnect,
    ForbiddenPublishTopic,
    ForbiddenSubscribeTopic,
}

impl RejectionReason {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::TooManyConnections => "too_many_connections",
            Self::TooManyPendingConnections => "too_many_pending_connections",
            Self::PendingConnectionReplaced => "pending_connection_replaced",
            Self::TlsHandshakeFailed => "tls_handshake_failed",
            Self::TlsHandshakeTimeout => "tls_handshake_timeout",
            Self::NoCommonName => "no_common_name",
            Self::ShuttingDown => "shutting_down",
            Self::InvalidClientId => "invalid_client_id",
            Self::CnMismatch => "cn_mismatch",
            Self::RateLimited => "rate_limited",
            Self::Overloaded => "overloaded",
            Self::ForbiddenWillTopic => "forbidden_will_topic",
            Self::WillNotOffline => "will_not_offline",
            Self::NoConnectPacket => "no_connect_packet",
            Self::TooManyLargeConnectPackets => "too_many_large_connect_packets",
            Self::PacketTooLarge => "packet_too_large",
            Self::PacketTimeout => "packet_timeout",
            Self::RepeatedConnect => "repeated_connect",
            Self::ForbiddenPublishTopic => "forbidden_publish_topic",
            Self::ForbiddenSubscribeTopic => "forbidden_subscribe_topic",
        }
    }
}
