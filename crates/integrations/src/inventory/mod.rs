//! Reports hosts to inventory.
//!
//! `message` builds the message for one host and decides whether the host is eligible. `facts`
//! selects the facts that inventory accepts. `reporter` sends the messages of many hosts through a
//! `sink`.

mod facts;
pub mod message;
pub mod reporter;
mod settings;
pub mod sink;

pub use settings::InventorySettings;
