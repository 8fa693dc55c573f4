//! Registers catalog proxies with the sources service.

mod client;
mod registration_queue;
#[cfg(test)]
mod tests;

pub use client::{Sources, source_of};
pub use registration_queue::{RegistrationQueue, SourceRegistrar, run};
