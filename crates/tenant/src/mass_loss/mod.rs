//! Detects that a gateway fault would clear the tenants of many clients at once.
//!
//! A mass loss is a sudden "not found" result for more than 20 % of at least 50 clients that had a
//! tenant. The program then assumes a gateway fault: the results count as unavailable, and the
//! clients keep their tenants. `counter` counts the results of one run of a lookup job. `detector`
//! counts the results of the recorder in the last minute. `detector` also returns the tenants that
//! were cleared before the threshold was reached, so that the recorder can restore them.

mod counter;
mod detector;

pub use counter::MassLossCounter;
pub use detector::{MassLossDetector, MassLossVerdict};
