//! Cloud Connector: records which clients are connected over MQTT, and the organization of each
//! client. A REST API lists the connections and sends messages to the clients.
//!
//! `docs/ARCHITECTURE.md` describes the path of one message through the modules.
//! `tests/architecture.rs` lists the modules that each module may import, and checks the imports.

// The command line, one file per command.
pub mod cli;
// Startup and shutdown of a process. Creates the components that the process needs for its roles.
pub mod runtime;

// Settings from defaults, file, environment and flags. Only this module reads environment
// variables.
pub mod config;
// Keyed token-bucket rate limiting.
pub mod rate_limit;
// Types of values that the settings of several components contain.
pub mod settings;
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
// Delivery of messages to clients: encodes a message in the client's dialect, publishes the
// message, and waits for the client's response.
pub mod delivery;
// Shared settings and helpers for HTTP requests to other services.
pub mod http_client;
// Receives messages from MQTT or Kafka and forwards the messages to Kafka or to the recorder.
pub mod ingest;
// Integrations with other platform services: reports hosts to the inventory service, and registers
// catalog proxies with the sources service.
pub mod integrations;
// Periodic jobs: tenant lookups, inventory refresh, deletion of expired rows.
pub mod jobs;
// Kafka producer, consumer and topics.
pub mod kafka;
// MQTT client for an external broker.
pub mod mqtt;
// The recorder: applies presence messages to the database in batches.
pub mod record;
// The database. Contains all SQL statements.
pub mod store;
// Lookup of a client's tenant.
pub mod tenant;
// TLS server certificates. Reloads the certificates when their files change.
pub mod tls_server;
