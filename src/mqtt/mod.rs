//! MQTT as a client: the only user of the client crate.

mod client;
mod tls;

pub use client::{Happening, Link, Options, Publisher, connect};
pub use tls::{ClientTls, ClientTlsError};
