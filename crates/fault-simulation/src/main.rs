//! Runs the pipeline and the jobs in one thread with virtual time under seeded faults, and compares
//! the end state with a model.
//!
//! Real are the recorder, the Kafka reader, the tenant lookup with cache and breaker, the jobs and the
//! SQLite store. Simulated are the MQTT broker, `ingest`, Kafka, the gateway, the clients, the network
//! and the clock. Each schedule runs in a process of its own, so that a seed always gives the same
//! run. docs/decisions/028-deterministic-simulation.md describes the design.

mod check;
mod clients;
mod connector;
mod database;
mod distributed;
mod embedded;
mod embedded_broker;
mod embedded_clients;
mod fixed_random;
mod gateway;
mod ingest;
mod kafka_cluster;
mod kafka_consumer;
mod messages;
mod model;
mod mqtt_broker;
mod options;
mod plan;
mod process;
mod process_clients;
mod process_store;
mod runner;
mod schedule;
mod store_faults;
mod world;

use std::process::ExitCode;

use options::Options;

fn main() -> ExitCode {
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("fault-simulation: {error}");
            return ExitCode::from(2);
        }
    };
    if options.is_child || options.prints_trace {
        schedule::run_in_this_process(&options)
    } else {
        runner::run_schedules(&options)
    }
}
