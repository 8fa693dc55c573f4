//! MQTT as a client: the only user of the client crate.
//!
//! A `connect` is one connection. When it is lost it is over: the next one is made anew. So an
//! acknowledgement can never reach a connection that it does not belong to, and a publish that was
//! given up is never sent again behind the caller's back.

mod backoff;
mod connection;
mod options;
mod reconnecting;
mod tls;
mod websocket_token;

pub use backoff::Backoff;
pub use connection::{Ack, ConnectionClosed, EventLoop, MqttEvent, MqttHandle, connect};
pub use options::{Options, OptionsError, Session, Will};
pub use reconnecting::{
    IncomingMessage, OnMessage, PublishError, ReconnectingClient, Subscription, probe,
};
pub use tls::{ClientTls, TlsFileError};
pub use websocket_token::{Token, TokenError};
