//! Looks up the tenant (organization and account number) of a client.
//!
//! The outcome `NotFound` is definitive. The outcome `Unavailable` is not definitive and must never
//! clear a stored tenant.
//!
//! `static_file` reads tenants from a JSON file. `gateway` requests tenants from the certificate
//! gateway over HTTP. `lookup_client` adds a cache, a concurrency limit and a circuit breaker
//! to the gateway. `mass_loss` detects gateway faults that would clear the tenants of
//! many clients. `account_translation` converts between account numbers and organizations for API
//! callers.

mod account_translation;
mod gateway;
mod lookup_client;
mod mass_loss;
pub mod metrics;
mod settings;
mod static_file;

use async_trait::async_trait;
use tokio::time::Instant;

use domain::{ClientId, Identity, LookupStatus, Tenant};

pub use account_translation::{
    AccountTranslator, HttpTranslator, StaticTranslator, TranslationOutcome, TranslatorError,
};
pub use gateway::{GatewayClient, GatewayError};
pub use lookup_client::{Gateway, LookupClient, LookupLimits};
pub use mass_loss::{MassLossCounter, MassLossDetector, MassLossVerdict};
pub use settings::TenantSettings;
pub use static_file::{StaticTenants, StaticTenantsError};

/// Result of a tenant lookup.
#[derive(Debug, Clone, PartialEq)]
pub enum TenantLookupOutcome {
    /// The client has an organization.
    Found(FoundTenant),
    /// The client definitely has no organization.
    NotFound,
    /// The lookup service gave no usable response. The lookup does not count as a failed attempt.
    Unavailable,
}

/// A client's tenant, and the identity document that contains this tenant.
#[derive(Debug, Clone, PartialEq)]
pub struct FoundTenant {
    /// Organization and account number of the client.
    pub tenant: Tenant,
    /// Identity document that the lookup returned for the client. The document includes fields that
    /// this program does not use, because inventory needs the complete document.
    pub identity: Identity,
}

impl TenantLookupOutcome {
    /// Returns the outcome without the tenant, for metrics and logs.
    #[must_use]
    pub fn status(&self) -> LookupStatus {
        match self {
            Self::Found(_) => LookupStatus::Found,
            Self::NotFound => LookupStatus::NotFound,
            Self::Unavailable => LookupStatus::Unavailable,
        }
    }

    /// Returns `Found` if the identity contains an organization, otherwise `NotFound`.
    #[must_use]
    pub fn from_identity(identity: Identity) -> Self {
        match identity.tenant().cloned() {
            Some(tenant) => Self::Found(FoundTenant { tenant, identity }),
            None => Self::NotFound,
        }
    }
}

/// Looks up the tenants of clients, at the gateway or in a static file.
#[async_trait]
pub trait TenantLookup: Send + Sync + 'static {
    /// Looks up the tenant of a client. Returns `Unavailable` if the lookup has not finished at the
    /// deadline.
    async fn lookup(&self, client: &ClientId, deadline: Instant) -> TenantLookupOutcome;

    /// Checks whether lookups work, for the `doctor` command. Returns a one-line description, or an
    /// error text with the problem and its fix.
    async fn check_availability(&self) -> Result<String, String>;

    /// Returns a one-line status for the readiness endpoint. The status never makes the process
    /// unready, because clients keep their tenants while lookups are unavailable.
    fn health_note(&self) -> String {
        "ok".to_owned()
    }
}
