//! Roles whose clocks differ.
