//! PostgreSQL connections that stop responding.
