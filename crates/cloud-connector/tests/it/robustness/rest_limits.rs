//! Disconnects, large lists and readiness requests of the REST API.

mod disconnect;
mod distributed_mqtt_packets;
mod large_responses;
mod probes;
