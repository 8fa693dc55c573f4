//! A log reader that does not read, and lookups that panic.
