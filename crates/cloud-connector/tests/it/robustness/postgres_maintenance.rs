//! Maintenance statements over many rows in PostgreSQL.
