//! Cloud Connector: a registry of clients connected over MQTT and of their organizations, with a
//! REST API that lists the connections and sends messages to the clients.
//!
//! `docs/ARCHITECTURE.md` follows one message through the modules. `tests/architecture.rs` checks
//! which module may use which.

// The command line, one file per command.
pub mod cli;
// Startup and shutdown of a process: creates the components that its roles need.
pub mod runtime;

// Settings from defaults, file, environment and flags. The only module that reads the environment.
pub mod config;
// Keyed token-bucket rate limiting.
pub mod rate_limit;
// Groups of tasks that are cancelled and awaited together.
pub mod shutdown;
// Logs, metrics and health.
pub mod telemetry;

// Ids, connections, tenants, identities and time. No I/O.
pub mod domain;
// MQTT topics and message formats: decoding and encoding. No I/O.
pub mod protocol;

// The REST API.
pub mod api;
// The embedded MQTT broker.
pub mod broker;
// Messages to clients: encodes them in the client's dialect, publishes them, waits for the
// response.
pub mod delivery;
// Shared settings and helpers for HTTP requests to other services.
pub mod http_client;
// Receives messages from MQTT or Kafka and passes them to Kafka or to the recorder.
pub mod ingest;
// Other services of the platform: host reports to inventory, registrations with sources.
pub mod integrations;
// Periodic jobs: tenant lookups, inventory refresh, deletion of expired rows.
pub mod jobs;
// Kafka producer, consumer and topics.
pub mod kafka;
// MQTT client for an external broker.
pub mod mqtt;
// The recorder: applies presence messages to the database in batches.
pub mod record;
// The database. All SQL.
pub mod store;
// Lookup of a client's tenant.
pub mod tenant;
// TLS server certificates, with reload.
pub mod tls_server;
