//! What the services around us are told: hosts to inventory, catalog proxies to sources.
//!
//! What is said to inventory is decided here, without I/O, and sent through `kafka`; sources is told
//! over HTTP. Whether something is to be said at all, and what happens if it was not heard, is for
//! `record` and `updaters`.

pub mod announcer;
pub mod inventory;
pub mod outlet;
pub mod sources;
