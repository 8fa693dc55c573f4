//! Integration tests, built as one binary. The tests run real processes and use real sockets. Each
//! test uses its own ports and its own data folder, so all tests can run in parallel.
//!
//! The path of each test that uses PostgreSQL, Mosquitto or Kafka contains `distributed` or
//! `postgres`. `make test-fast` skips these tests by that rule. It also skips
//! `third_party_clients` and `rest::schema`, which use Python programs, and `third_party_shells`.

mod acceptance;
mod api;
mod architecture;
mod broker_budgets;
mod broker_isolation;
mod broker_large_messages;
mod broker_lifecycle;
mod broker_rejections;
mod broker_websocket;
mod cli;
mod cli_connections;
mod cli_generated;
mod cli_login;
mod cli_rest;
mod distributed;
mod documentation;
mod end_to_end;
mod events;
mod hostile_messages;
mod inventory;
mod inventory_reports;
mod lookup_outages;
mod operator_commands;
mod paho;
mod presence_history;
mod property_tests;
mod recording;
mod rest;
mod restart;
mod robustness;
mod scenarios;
mod simulate;
mod sources;
mod spec;
mod startup_errors;
mod supervision;
mod third_party_clients;
mod tracked_messages;
mod upgrade;
