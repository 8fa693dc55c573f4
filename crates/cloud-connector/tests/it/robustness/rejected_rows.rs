//! Rows that the database rejects.
