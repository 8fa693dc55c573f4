//! Metrics of the TLS server certificates.

use metrics::{counter, describe_counter};

const CERTIFICATE_RELOADS: &str = "cloud_connector_tls_certificate_reloads_total";

/// Registers the help texts of these metrics. Call this function after the metrics recorder is
/// installed, because earlier registrations are discarded.
pub fn describe() {
    describe_counter!(
        CERTIFICATE_RELOADS,
        "Reloads of TLS server certificates, by listener and outcome"
    );
}

/// Counts a reload of TLS certificates. After a failed reload, the previous certificates stay in
/// use.
pub fn count_certificate_reload(
    listener: &'static str,
    result: Result<(), &dyn std::error::Error>,
) {
    let outcome = if result.is_ok() { "reloaded" } else { "failed" };
    counter!(CERTIFICATE_RELOADS, "listener" => listener, "outcome" => outcome).increment(1);
    match result {
        Ok(()) => tracing::info!(listener, "TLS certificates reloaded"),
        Err(error) => tracing::error!(
            listener,
            %error,
            "failed to reload TLS certificates; the previous ones stay in use"
        ),
    }
}
