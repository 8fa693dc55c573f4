//! The status dialect: what rhc and yggdrasil speak.
//!
//! `control` reads what clients say of themselves; `data` writes what goes to them; `client` is the
//! other end, for the simulator.

pub mod client;
pub mod control;
pub mod data;

pub use control::{CONTROL_MAX_BYTES, Control, Online, parse_control};
pub use data::encode_message;
