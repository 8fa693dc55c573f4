//! MQTT client. Only this module uses the `rumqttc` crate.
//!
//! [`connect`] creates one connection, which never reconnects. If the connection is lost, the
//! caller creates a new connection. This has two advantages. An acknowledgement is always sent on
//! the connection that received the message. And a publish whose caller has stopped waiting is
//! never resent on a new connection.
//!
//! [`ReconnectingClient`] is for callers that always need a connection.

mod backoff;
mod connection;
mod options;
mod reconnecting;
mod settings;
mod shared_subscription;
mod tls;
mod websocket_token;

pub use backoff::Backoff;
pub use connection::{
    Ack, ConnectionClosed, EventLoop, MqttEvent, MqttHandle, SubscriptionQos, connect,
};
pub use options::{ConnectOptions, ConnectOptionsError, SessionKind, Will};
pub use reconnecting::{
    IncomingMessage, MessageReaction, OnMessage, ProbeError, ReconnectingClient, RequestError,
    SubscriptionGuard, probe,
};
pub use settings::{IngestMessages, MqttSettings};
pub use shared_subscription::{Distribution, probe_shared_subscription};
pub use tls::{ClientTls, TlsFileError};
pub use websocket_token::{TokenError, TokenSource};
