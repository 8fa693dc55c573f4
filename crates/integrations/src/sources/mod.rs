//! Registers catalog proxies with the sources service.
//!
//! Registrations are queued and sent in the background, so the recorder never waits for the
//! service.

mod client;
mod registration_queue;
mod settings;
#[cfg(test)]
mod tests;

pub use client::{SourcesClient, catalog_source};
pub use registration_queue::{RegistrationQueue, SourceRegistrar, process_registrations};
pub use settings::SourcesSettings;
