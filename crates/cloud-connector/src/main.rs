//! The `cloud-connector` executable. The command line is in [`cloud_connector::cli`].

use std::process::ExitCode;

/// The allocator of the whole process, including librdkafka and SQLite. The allocator of glibc keeps
/// freed memory after a burst of large messages. This allocator returns it to the operating system
/// within seconds (docs/decisions/018-memory-budget.md).
#[cfg(target_env = "gnu")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    cloud_connector::cli::main()
}
