//! MQTT as a client: the only user of the client crate.
//!
//! A `connect` is one connection. When it is lost it is over: the next one is made anew. So an
//! acknowledgement can never reach a connection that it does not belong to, and a publish that was
//! given up is never sent again behind the caller's back.

mod backoff;
mod client;
mod options;
mod publisher;
mod tls;
mod token;

pub use backoff::Backoff;
pub use client::{Ack, Ended, Happening, Link, Publisher, connect};
pub use options::{Options, OptionsError, Session, Will};
pub use publisher::{HeardMessage, KeptConnection, Listening, OnHeard, PublishError, probe};
pub use tls::{ClientTls, TlsFileError};
pub use token::{Token, TokenError};
