//! Passes the Git commit to the program, which prints it with `--version`.
//!
//! Only this crate is compiled again after a commit, and only in builds without debug information
//! (`make run`, `make build`). In builds for tests, the commit is `unknown`: otherwise each commit would
//! compile all tests of this crate again.

use std::path::{Path, PathBuf};
use std::process::Command;

const UNKNOWN_COMMIT: &str = "unknown";

#[expect(
    clippy::disallowed_methods,
    reason = "cargo passes its settings to build scripts as environment variables"
)]
fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let folder = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
    let is_for_tests = std::env::var("DEBUG").is_ok_and(|debug| debug != "false");
    let mut commit = None;
    if !is_for_tests {
        commit = read_commit(Path::new(&folder));
        for file in commit_files(Path::new(&folder)) {
            println!("cargo::rerun-if-changed={}", file.display());
        }
    }
    let commit = commit.as_deref().unwrap_or(UNKNOWN_COMMIT);
    println!("cargo::rustc-env=CLOUD_CONNECTOR_COMMIT={commit}");
}

/// Returns the first 12 digits of the commit. Returns `None` outside a Git repository, without Git, and if
/// the file of this folder is not part of the repository, as in an unpacked archive within another one.
pub fn read_commit(folder: &Path) -> Option<String> {
    git(folder, &["ls-files", "--error-unmatch", "Cargo.toml"])?;
    git(folder, &["rev-parse", "--short=12", "HEAD"])
}

/// Returns the existing files that change with the commit: `HEAD`, its log, and the file of the branch,
/// which Git can move to `packed-refs`.
pub fn commit_files(folder: &Path) -> Vec<PathBuf> {
    let mut names = ["HEAD", "logs/HEAD", "packed-refs"]
        .map(str::to_owned)
        .to_vec();
    names.extend(git(folder, &["symbolic-ref", "--quiet", "HEAD"]));
    let paths = names.iter().filter_map(|name| {
        let path = git(folder, &["rev-parse", "--git-path", name])?;
        Some(folder.join(path))
    });
    // A file that does not exist would start this script in each build.
    paths.filter(|path| path.exists()).collect()
}

/// Returns the first line of the output of Git. Returns `None` if Git fails.
fn git(folder: &Path, args: &[&str]) -> Option<String> {
    let output = Command::new("git")
        .args(args)
        .current_dir(folder)
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let line = text.lines().next().filter(|_| output.status.success())?;
    Some(line.to_owned())
}
