//! To whom does a client belong?
//!
//! Three outcomes, and the difference between the last two is why this room exists: "nobody" is
//! an answer, "I could not ask" is not, and must cost no client its tenant.

mod fixed;

use async_trait::async_trait;

use crate::domain::{ClientId, Tenant};

pub use fixed::{FixedTenants, ReadError};

/// What a lookup found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lookup {
    /// It belongs to this organisation.
    Found(Tenant),
    /// A definite answer: it belongs to none.
    NotFound,
    /// No answer. Never counts against the client.
    Unavailable,
}

impl Lookup {
    /// Its name as a metric's label.
    #[must_use]
    pub fn outcome(&self) -> &'static str {
        match self {
            Self::Found(_) => "found",
            Self::NotFound => "not_found",
            Self::Unavailable => "unavailable",
        }
    }
}

/// Something that knows to whom clients belong.
#[async_trait]
pub trait Tenants: Send + Sync + 'static {
    /// Looks one client up.
    async fn lookup(&self, client: &ClientId) -> Lookup;

    /// Whether it could answer now, for `doctor`: a line that says what it is, or what is wrong.
    async fn probe(&self) -> Result<String, String>;
}
