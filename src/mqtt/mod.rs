//! MQTT client. Only this module uses the `rumqttc` crate.
//!
//! [`connect`] creates exactly one connection and never reconnects. After a connection is lost, the
//! caller creates a new one. Therefore an acknowledgement cannot reach a connection other than the
//! one that received the message, and a publish whose caller gave up is never resent later.
//! [`ReconnectingClient`] builds on this for callers that always need a connection.

mod backoff;
mod connection;
mod options;
mod reconnecting;
mod tls;
mod websocket_token;

pub use backoff::Backoff;
pub use connection::{Ack, ConnectionClosed, EventLoop, MqttEvent, MqttHandle, connect};
pub use options::{ConnectOptions, ConnectOptionsError, SessionKind, Will};
pub use reconnecting::{
    IncomingMessage, OnMessage, ReconnectingClient, RequestError, SubscriptionGuard, probe,
};
pub use tls::{ClientTls, TlsFileError};
pub use websocket_token::{TokenError, TokenSource};
