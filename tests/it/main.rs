//! Integration tests: one binary, real processes and sockets, everything on free ports and in
//! folders of its own, so that all of it runs side by side.

mod support;

mod acceptance;
mod api;
mod bad_input;
mod broker_isolation;
mod broker_life;
mod cli;
mod corpus;
#[cfg(feature = "outside-tests")]
mod distributed;
mod drills;
mod end_to_end;
mod inventory;
mod operators;
#[cfg(feature = "outside-tests")]
mod other_makes;
mod properties;
mod recording;
mod rest;
mod restart;
mod simulate;
mod sources;
mod spec;
mod store_contract;
