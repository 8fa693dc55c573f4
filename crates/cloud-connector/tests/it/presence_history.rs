//! Tests of the presence history in both deployment modes.

mod reads;
