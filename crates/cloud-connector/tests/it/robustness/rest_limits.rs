//! Disconnects, large lists and readiness requests of the REST API.
