//! Integration tests: one binary, real processes and sockets, everything on free ports and in
//! folders of its own, so that all of it runs side by side.

mod support;

mod acceptance;
mod api;
mod broker_isolation;
mod broker_lifecycle;
mod cli;
#[cfg(feature = "external-services")]
mod distributed;
mod end_to_end;
mod hostile_messages;
mod inventory;
mod lookup_outages;
mod operator_commands;
mod properties;
mod recording;
mod rest;
mod restart;
mod simulate;
mod sources;
mod spec;
mod startup_errors;
mod store_contract;
#[cfg(feature = "external-services")]
mod third_party_clients;
