//! Reasons for which the broker rejects a connection, a publish or a subscription, and their reports to
//! operators.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::metrics;
use super::recent_rejections::{RecentRejections, truncate_id};
use domain::ClientId;
use service::LogLimiter;

/// Minimum time between two log lines with the same reason.
const LOG_INTERVAL: Duration = Duration::from_secs(1);
/// Number of reasons for which there are log lines. Larger than the number of all reasons.
const MAX_LOGGED_REASONS: usize = 100;

/// Why the broker rejected a connection, a publish or a subscription. Used as the label `reason` of
/// the metric `cloud_connector_broker_rejections_total`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
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
    /// The request of a WebSocket client is not valid or not allowed.
    WebSocketHandshakeFailed,
    /// The CONNECT packet was not complete in time.
    ConnectTimeout,
    /// The first packet of the connection is not a CONNECT packet.
    NoConnectPacket,
    MalformedConnect,
    UnsupportedProtocolVersion,
    /// The client wants to authenticate with AUTH packets.
    UnsupportedAuthentication,
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
    /// The CONNECT packets of open connections use too much memory. Only CONNECT packets of more
    /// than 4 KiB are rejected for this reason.
    TooManyLargeConnectPackets,
    /// The packet exceeds `broker.max_packet_size`, or the lower limit of its packet type.
    PacketTooLarge,
    /// The client did not complete a large packet in time, or sent nothing for one second while other
    /// packets waited for memory.
    PacketTimeout,
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
            Self::WebSocketHandshakeFailed => "websocket_handshake_failed",
            Self::ConnectTimeout => "connect_timeout",
            Self::NoConnectPacket => "no_connect_packet",
            Self::MalformedConnect => "malformed_connect",
            Self::UnsupportedProtocolVersion => "unsupported_protocol_version",
            Self::UnsupportedAuthentication => "unsupported_authentication",
            Self::ShuttingDown => "shutting_down",
            Self::InvalidClientId => "invalid_client_id",
            Self::CnMismatch => "cn_mismatch",
            Self::RateLimited => "rate_limited",
            Self::Overloaded => "overloaded",
            Self::ForbiddenWillTopic => "forbidden_will_topic",
            Self::WillNotOffline => "will_not_offline",
            Self::TooManyLargeConnectPackets => "too_many_large_connect_packets",
            Self::PacketTooLarge => "packet_too_large",
            Self::PacketTimeout => "packet_timeout",
            Self::ForbiddenPublishTopic => "forbidden_publish_topic",
            Self::ForbiddenSubscribeTopic => "forbidden_subscribe_topic",
        }
    }

    /// Returns the text for a client that is rejected at CONNECT. The text has less than 125 bytes.
    pub fn explanation(self) -> Option<&'static str> {
        match self {
            Self::MalformedConnect => Some("the CONNECT packet is malformed"),
            Self::UnsupportedAuthentication => Some("enhanced authentication is not supported"),
            Self::ShuttingDown => Some("the broker is shutting down"),
            Self::InvalidClientId => {
                Some("the client id is empty, too long, or contains a forbidden character")
            }
            Self::CnMismatch => {
                Some("the client id must be the common name of the client certificate")
            }
            Self::RateLimited => Some("this client id connects too often"),
            Self::Overloaded | Self::TooManyLargeConnectPackets => Some("the broker is overloaded"),
            Self::ForbiddenWillTopic => Some("the client may not publish to its will topic"),
            Self::PacketTooLarge => Some("the CONNECT packet is too large"),
            _ => None,
        }
    }
}

/// A peer whose connection, publish or subscription was rejected.
#[derive(Debug, Clone, Copy)]
pub(super) struct RejectedPeer<'a> {
    pub address: SocketAddr,
    /// The common name of the client certificate. `None` without TLS.
    pub certificate_name: Option<&'a ClientId>,
    /// The client id in the CONNECT packet, which may be invalid or the id of another client. `None`
    /// before the CONNECT packet.
    pub client_id: Option<&'a str>,
}

/// Counts, stores and logs rejections.
pub(super) struct Rejections {
    log: LogLimiter<RejectionReason>,
    recent_rejections: Arc<RecentRejections>,
}

impl Rejections {
    pub fn new(recent_rejections: Arc<RecentRejections>) -> Self {
        Self {
            log: LogLimiter::new(LOG_INTERVAL, MAX_LOGGED_REASONS),
            recent_rejections,
        }
    }

    /// Counts a rejection without storing or logging it.
    pub fn count(reason: RejectionReason) {
        metrics::count_rejection(reason.as_str());
    }

    /// Counts a rejection, stores it if an id of the peer is known, and logs it if the last log line with this reason is old enough.
    /// Otherwise clients that reconnect at once could fill the disk with log lines.
    pub fn report(&self, reason: RejectionReason, peer: RejectedPeer<'_>) {
        self.report_with_detail(reason, peer, None);
    }

    /// Like [`Rejections::report`], with a text for the log line.
    pub fn report_with_detail(
        &self,
        reason: RejectionReason,
        peer: RejectedPeer<'_>,
        detail: Option<&str>,
    ) {
        Self::count(reason);
        self.store(reason, &peer);
        let Some(suppressed_lines) = self.log.suppressed_if_due(&reason) else {
            return;
        };
        // Strings are escaped in the log, so a client cannot forge log lines.
        let client_id = peer.client_id.map(truncate_id);
        tracing::info!(
            reason = reason.as_str(),
            client_id,
            certificate_cn = peer.certificate_name.map(ClientId::as_str),
            peer = %peer.address,
            detail,
            suppressed_lines,
            "rejected by the broker"
        );
    }

    /// Stores a rejection for the client id of the peer and for the common name of its certificate.
    fn store(&self, reason: RejectionReason, peer: &RejectedPeer<'_>) {
        let certificate_name = peer.certificate_name.map(ClientId::as_str);
        let other_name = certificate_name.filter(|name| peer.client_id != Some(name));
        for id in [peer.client_id, other_name].into_iter().flatten() {
            self.recent_rejections
                .add(id, reason.as_str(), peer.address);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use domain::SystemClock;

    #[test]
    fn rejection_is_stored_for_the_client_id_and_the_name_of_the_certificate() {
        let recent_rejections = Arc::new(RecentRejections::new(Arc::new(SystemClock)));
        let rejections = Rejections::new(recent_rejections.clone());
        let name = ClientId::new("name").unwrap();
        for (certificate_name, client_id) in [
            (Some(&name), Some("id")),
            (Some(&name), Some("name")),
            (Some(&name), None),
            (None, Some("id")),
            (None, None),
        ] {
            let peer = RejectedPeer {
                address: SocketAddr::from(([127, 0, 0, 1], 1)),
                certificate_name,
                client_id,
            };
            rejections.report(RejectionReason::CnMismatch, peer);
        }
        let count = |id| recent_rejections.of_client(id).len();
        assert_eq!((count("name"), count("id")), (3, 2));
    }
}
