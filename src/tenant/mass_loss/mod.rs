//! Detects that a gateway fault would clear the tenants of many clients at once.
//!
//! If more than 20 % of at least 50 clients that had a tenant are suddenly "not found", the gateway
//! is assumed to be wrong: the results count as unavailable and the clients keep their tenants.
//! `counter` counts within one run of an updater job. `detector` counts over the last minute of
//! recording, and also returns the tenants that were cleared before the threshold was reached.

mod counter;
mod detector;

pub use counter::MassLossCounter;
pub use detector::{MassLossDetector, MassLossVerdict};
