//! To whom does a client belong?
//!
//! Three outcomes, and the difference between the last two is why this room exists: "nobody" is
//! an answer, "I could not ask" is not, and must cost no client its tenant.
//!
//! `fixed` is a file, `gateway` the certificate gateway over HTTP. `careful` stands before the
//! gateway: what is known for a while is not asked again, one client is asked for once at a time,
//! not too many at once, and not at all while there are no answers (`breaker`). `translator` is for
//! callers who know a tenant by its account number.

mod account_translation;
mod breaker;
mod gateway;
mod guard;
mod lookup_client;
mod static_file;

use async_trait::async_trait;
use tokio::time::Instant;

use crate::domain::{ClientId, Identity, Tenant};

pub use account_translation::{
    AccountTranslator, HttpTranslator, StaticTranslator, TranslationOutcome, TranslatorError,
};
pub use gateway::{Gateway, GatewayError};
pub use guard::MassLossCounter;
pub use lookup_client::{LookupClient, LookupLimits};
pub use static_file::{ReadError, StaticTenants};

/// What a lookup found.
#[derive(Debug, Clone, PartialEq)]
pub enum TenantLookupOutcome {
    /// It belongs to an organisation.
    Found(FoundTenant),
    /// A definite answer: it belongs to none.
    NotFound,
    /// No answer. Never counts against the client.
    Unavailable,
}

/// To whom a client belongs, and as whom it is known there.
#[derive(Debug, Clone, PartialEq)]
pub struct FoundTenant {
    /// The organisation and account.
    pub tenant: Tenant,
    /// The identity as it came: other services want it.
    pub identity: Identity,
}

impl TenantLookupOutcome {
    /// Its name as a metric's label.
    #[must_use]
    pub fn outcome(&self) -> &'static str {
        match self {
            Self::Found(_) => "found",
            Self::NotFound => "not_found",
            Self::Unavailable => "unavailable",
        }
    }

    /// What an identity says: one without an organisation is a definite "nobody".
    #[must_use]
    pub fn of(identity: Identity) -> Self {
        match identity.tenant().cloned() {
            Some(tenant) => Self::Found(FoundTenant { tenant, identity }),
            None => Self::NotFound,
        }
    }
}

/// Something that knows to whom clients belong.
#[async_trait]
pub trait TenantLookup: Send + Sync + 'static {
    /// Looks one client up. No answer by the deadline is none.
    async fn lookup(&self, client: &ClientId, deadline: Instant) -> TenantLookupOutcome;

    /// Whether it could answer now, for `doctor`: a line that says what it is, or what is wrong.
    async fn probe(&self) -> Result<String, String>;

    /// How it stands, for people who look at readiness. Nothing depends on it: without answers,
    /// clients keep the tenants they have.
    fn note(&self) -> String {
        "ok".to_owned()
    }
}
