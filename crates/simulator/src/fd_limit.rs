//! Raises the open-file limit, because each simulated client uses one file descriptor.

use anyhow::{Context as _, Result, bail};

/// Number of file descriptors for purposes other than client connections.
const RESERVED_FILE_DESCRIPTORS: u64 = 64;

/// Raises the open-file limit to the number of file descriptors that the clients need.
pub(super) fn raise_fd_limit(client_count: u32) -> Result<()> {
    let needed = u64::from(client_count) + RESERVED_FILE_DESCRIPTORS;
    let limit = rlimit::increase_nofile_limit(needed)
        .context("cannot raise the open-file limit; use fewer --clients")?;
    check_fd_limit(client_count, needed, limit)
}

fn check_fd_limit(client_count: u32, needed: u64, limit: u64) -> Result<()> {
    if limit < needed {
        let max_clients = limit.saturating_sub(RESERVED_FILE_DESCRIPTORS).max(1);
        bail!(
            "--clients: {client_count} clients need {needed} open files, but the limit is {limit}; \
             run `ulimit -n {needed}` first (may need root), or use --clients {max_clients}"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_contains_the_limit_the_ulimit_command_and_the_possible_client_count() {
        assert!(check_fd_limit(100, 164, 164).is_ok());
        let error = check_fd_limit(30_000, 30_064, 20_000)
            .unwrap_err()
            .to_string();
        for part in ["ulimit -n 30064", "20000", "--clients 19936"] {
            assert!(error.contains(part), "{error}");
        }
    }
}
