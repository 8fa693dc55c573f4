//! Cloud Connector: who is connected over MQTT, to which organisation each belongs, and messages
//! to them over REST.
//!
//! The modules stand in the order in which a message passes them. `docs/ARCHITECTURE.md` follows
//! one message through the files; `tests/architecture.rs` holds who may call whom.

/// The command line: one file a command.
pub mod cli;
/// Configuration → telemetry → store → roles → shutdown, once for every role.
pub mod runtime;

/// Defaults, file, environment and flags, merged; the only reader of the environment.
pub mod config;
/// How often something may be done.
pub mod rate_limit;
/// One stopper for everything, passed down as an argument.
pub mod shutdown;
/// Logs, metrics, health.
pub mod telemetry;

/// Ids, connections, tenants, identities, time: no I/O.
pub mod domain;
/// TopicScheme and messages: bytes ↔ types, no I/O.
pub mod protocol;

/// The REST interface.
pub mod api;
/// The embedded MQTT broker.
pub mod broker;
/// Find the connection, speak its dialect, publish, wait.
pub mod delivery;
/// Asking other services over HTTP.
pub mod http_client;
/// From MQTT to the queue, or straight to the recorder.
pub mod ingest;
/// What the services around us are told: hosts to inventory.
pub mod integrations;
/// Periodic work on the store.
pub mod jobs;
/// The queue between ingest and record.
pub mod kafka;
/// MQTT as a client.
pub mod mqtt;
/// One batch: fold, tenant, write.
pub mod record;
/// All SQL.
pub mod store;
/// To whom does a client belong?
pub mod tenant;
/// Certificates of the servers in this process.
pub mod tls_server;
