//! Reports hosts to inventory.

mod facts;
pub mod message;
pub mod reporter;
pub mod sink;
