//! Every client is an open file.

use anyhow::{Context as _, Result, bail};

/// For everything that is not a client.
const KEPT: u64 = 64;

/// Raises the limit as far as this many clients need.
pub(super) fn allow(clients: u32) -> Result<()> {
    let needed = u64::from(clients) + KEPT;
    let allowed = rlimit::increase_nofile_limit(needed)
        .context("the open-file limit cannot be raised; use fewer --clients")?;
    enough(clients, needed, allowed)
}

fn enough(clients: u32, needed: u64, allowed: u64) -> Result<()> {
    if allowed < needed {
        let fewer = allowed.saturating_sub(KEPT).max(1);
        bail!(
            "--clients: {clients} need {needed} open files, and this shell allows {allowed}; run `ulimit -n {needed}` before (as root, if that is refused), or use --clients {fewer}"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_few_files_are_named_with_the_cure() {
        assert!(enough(100, 164, 164).is_ok());
        let problem = enough(30_000, 30_064, 20_000).unwrap_err().to_string();
        for part in ["ulimit -n 30064", "20000", "--clients 19936"] {
            assert!(problem.contains(part), "{problem}");
        }
    }
}
