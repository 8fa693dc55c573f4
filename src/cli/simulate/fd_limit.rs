//! The open-file limit: each simulated client uses one file descriptor.

use anyhow::{Context as _, Result, bail};

/// File descriptors for everything that is not a client connection.
const RESERVED_FILES: u64 = 64;

/// Raises the open-file limit to what this many clients need.
pub(super) fn raise(clients: u32) -> Result<()> {
    let needed = u64::from(clients) + RESERVED_FILES;
    let limit = rlimit::increase_nofile_limit(needed)
        .context("cannot raise the open-file limit; use fewer --clients")?;
    check(clients, needed, limit)
}

fn check(clients: u32, needed: u64, limit: u64) -> Result<()> {
    if limit < needed {
        let possible = limit.saturating_sub(RESERVED_FILES).max(1);
        bail!(
            "--clients: {clients} clients need {needed} open files, but the limit is {limit}; run \
             `ulimit -n {needed}` first (may need root), or use --clients {possible}"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_names_the_limit_and_both_fixes() {
        assert!(check(100, 164, 164).is_ok());
        let error = check(30_000, 30_064, 20_000).unwrap_err().to_string();
        for part in ["ulimit -n 30064", "20000", "--clients 19936"] {
            assert!(error.contains(part), "{error}");
        }
    }
}
