//! The cases of the contract, grouped by what they test.

pub mod batches;
pub mod clients;
pub mod connections;
pub mod dead_letters;
pub mod delivered_reports;
pub mod epochs;
pub mod events;
pub mod heartbeats;
pub mod idempotency;
pub mod liveness;
pub mod lookup_queue;
pub mod maintenance;
pub mod mark_disconnected;
pub mod message_answers;
pub mod messages;
pub mod presence;
pub mod search;
