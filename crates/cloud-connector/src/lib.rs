//! The `cloud-connector` program: the command line, the configuration, and the composition of the
//! components.
//!
//! `docs/ARCHITECTURE.md` lists the crates and describes the path of one message through them.

// The command line, one file per command.
pub mod cli;
// Settings from defaults, file, environment and flags. Only this module reads environment
// variables.
pub mod config;
// Startup and shutdown of a process. Creates the components that the process needs for its roles.
pub mod runtime;
