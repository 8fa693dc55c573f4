//! Processes whose clock differs from the clock of the machine.

use std::path::PathBuf;
use std::sync::OnceLock;

use tokio::process::Command;

use crate::services::repository_root;

/// Source of the library that shifts the clock.
const LIBRARY_SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/clock_offset.c");

/// Difference between the clock of a process and the clock of the machine. Only the time of day is
/// shifted. Timers use the monotonic clock, which is not shifted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClockOffset {
    seconds: i64,
}

impl ClockOffset {
    /// The clock of the machine.
    pub const NONE: Self = Self { seconds: 0 };

    /// A clock that is ahead of the machine's clock by `seconds`, or behind it if `seconds` is
    /// negative.
    #[must_use]
    pub const fn from_seconds(seconds: i64) -> Self {
        Self { seconds }
    }

    /// Shifts the clock of the process that `command` starts.
    pub fn apply_to(self, command: &mut Command) {
        if self == Self::NONE {
            return;
        }
        command
            .env("LD_PRELOAD", library_path())
            .env("CLOCK_OFFSET_SECONDS", self.seconds.to_string());
    }
}

/// Compiles the library on the first call. Returns its path.
fn library_path() -> &'static PathBuf {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let dir = repository_root().join("target/t");
        std::fs::create_dir_all(&dir).unwrap();
        let library = dir.join("libclock_offset.so");
        // Another test process may compile or use the library at the same time.
        let temporary_file = dir.join(format!("libclock_offset-{}.so", std::process::id()));
        let status = std::process::Command::new("cc")
            .args(["-O1", "-shared", "-fPIC", "-o"])
            .arg(&temporary_file)
            .args([LIBRARY_SOURCE, "-ldl"])
            .status()
            .expect("the C compiler cc is missing; run `dev/prepare build`");
        assert!(status.success(), "cannot compile {LIBRARY_SOURCE}");
        std::fs::rename(&temporary_file, &library).unwrap();
        library
    })
}
