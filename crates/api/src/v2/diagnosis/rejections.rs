//! What to do about a rejection by the broker.

use domain::BrokerRejection;

/// Reason of repeated takeovers: two connections with the same client id replace each other.
pub(super) const TAKEN_OVER: &str = "taken_over";

/// Returns what to do about two machines that use the same client id.
pub(super) fn duplicate_id_suggestion(peers: &[&str]) -> String {
    let from = match peers {
        [] => String::new(),
        peers => format!(" The connections come from {}.", peers.join(" and ")),
    };
    format!(
        "Check whether two machines use this client id, for example because a machine was copied \
         together with its certificate; register one of them again.{from} If there is only one machine, \
         check its network connection to the broker."
    )
}

/// Returns what to do about a rejection.
pub(super) fn suggestion(rejection: &BrokerRejection) -> String {
    let peer = &rejection.peer;
    match rejection.reason.as_str() {
        "cn_mismatch" => format!(
            "The client id and the common name of the certificate of {peer} differ: configure this \
             machine to use its own certificate, and the common name of the certificate as its client id."
        ),
        "no_common_name" => format!(
            "The certificate of {peer} has no common name that is a valid client id: register the machine \
             again to get a new certificate."
        ),
        reason if reason.starts_with("tls_") => format!(
            "The TLS handshake of {peer} failed: check that its certificate is valid, not expired, and \
             issued by a CA in broker.tls.client_ca."
        ),
        "rate_limited" => format!(
            "The client connects more often than broker.connect_limit allows, latest from {peer}: find \
             out why it reconnects, for example because two machines use the same client id. The broker \
             accepts it again as soon as it connects less often."
        ),
        TAKEN_OVER => duplicate_id_suggestion(&[peer]),
        "overloaded" | "too_many_large_connect_packets" | "too_many_connections" => {
            "The broker rejected the connection because of too much load: check the health of the service \
             at /readiness, and the limits in the section [broker] of the configuration. The client tries \
             again by itself."
                .to_owned()
        }
        "forbidden_publish_topic" | "forbidden_subscribe_topic" | "forbidden_will_topic" => format!(
            "The client {peer} uses a topic that it may not use: compare the topic prefix in the \
             configuration of the client with mqtt.prefixes."
        ),
        "invalid_client_id" => format!(
            "The client id of {peer} is empty, too long, or contains a forbidden character: correct it in \
             the configuration of the machine."
        ),
        reason => format!(
            "The broker rejected {peer} with the reason {reason}: the log of the service contains the \
             details of the rejection."
        ),
    }
}
