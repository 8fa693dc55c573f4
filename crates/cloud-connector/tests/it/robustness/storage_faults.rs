//! Faults of the disk below the SQLite database.
