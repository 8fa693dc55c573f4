//! Reasons for which the broker rejects a connection, a publish or a subscription.

/// Why the broker rejected a connection, a publish or a subscription. Used as the label `reason` of
/// the metric `cloud_connector_broker_rejections_total`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RejectionReason {
    /// `broker.max_connections` or `broker.max_connections_per_address` is reached.
    TooManyConnections,
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
    /// The message sink is overloaded, usually because the database is slow or unavailable.
    Overloaded,
    ForbiddenWillTopic,
    /// The client sent a second CONNECT packet on the same connection.
    RepeatedConnect,
    ForbiddenPublishTopic,
    ForbiddenSubscribeTopic,
}

impl RejectionReason {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::TooManyConnections => "too_many_connections",
            Self::TlsHandshakeFailed => "tls_handshake_failed",
            Self::TlsHandshakeTimeout => "tls_handshake_timeout",
            Self::NoCommonName => "no_common_name",
            Self::ShuttingDown => "shutting_down",
            Self::InvalidClientId => "invalid_client_id",
            Self::CnMismatch => "cn_mismatch",
            Self::RateLimited => "rate_limited",
            Self::Overloaded => "overloaded",
            Self::ForbiddenWillTopic => "forbidden_will_topic",
            Self::RepeatedConnect => "repeated_connect",
            Self::ForbiddenPublishTopic => "forbidden_publish_topic",
            Self::ForbiddenSubscribeTopic => "forbidden_subscribe_topic",
        }
    }
}
