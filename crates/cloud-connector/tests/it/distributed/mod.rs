//! Tests of the distributed deployment mode with real Mosquitto, Kafka and PostgreSQL.

mod acl;
mod adoption;
mod doctor;
mod end_to_end;
mod liveness_sweep;
mod mosquitto_limits;
mod paho_behind_mosquitto;
mod rebalance;
mod restarts;
mod tls_and_sasl;
