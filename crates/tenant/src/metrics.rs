//! Metrics of the tenant lookup.

use metrics::{counter, describe_counter, describe_gauge, gauge};

use domain::LookupStatus;

const TENANT_LOOKUPS: &str = "cloud_connector_tenant_lookups_total";
const TENANT_GATEWAY_REQUESTS: &str = "cloud_connector_tenant_gateway_requests_total";
const TENANT_BREAKER_OPEN: &str = "cloud_connector_tenant_breaker_open";
const MASS_LOSS_SUPPRESSED: &str = "cloud_connector_tenant_mass_loss_suppressed_total";

/// Registers the help texts of these metrics. Call this function after the metrics recorder is
/// installed, because earlier registrations are discarded.
pub fn describe() {
    describe_counter!(TENANT_LOOKUPS, "Tenant lookups, by outcome");
    describe_counter!(TENANT_GATEWAY_REQUESTS, "Requests to the tenant gateway");
    describe_gauge!(
        TENANT_BREAKER_OPEN,
        "1 while the circuit breaker of the tenant lookup is open, else 0"
    );
    describe_counter!(
        MASS_LOSS_SUPPRESSED,
        "Times that the lookup returned no tenant for too many clients at once and was not applied"
    );
}

/// Counts a finished tenant lookup.
pub fn count_tenant_lookup(status: LookupStatus) {
    counter!(TENANT_LOOKUPS, "outcome" => status.as_str()).increment(1);
}

/// Counts a request to the tenant gateway.
pub fn count_tenant_gateway_request() {
    counter!(TENANT_GATEWAY_REQUESTS).increment(1);
}

/// Sets whether the circuit breaker of the tenant lookup is open.
pub fn set_tenant_breaker_open(is_open: bool) {
    gauge!(TENANT_BREAKER_OPEN).set(if is_open { 1.0 } else { 0.0 });
}

/// Counts a suppressed mass loss: the lookup returned no tenant for too many clients at once, and
/// the clients kept their previous tenants.
pub fn count_suppressed_mass_loss() {
    counter!(MASS_LOSS_SUPPRESSED).increment(1);
}
