//! Processes whose clock differs from the clock of the machine.

use std::path::PathBuf;

use tokio::process::Command;

/// Folder that contains one folder with libraries for each architecture.
const LIBRARIES_DIR: &str = "/usr/lib";
/// Path of libfaketime in the folder of an architecture. `MT` is the variant for programs with
/// several threads.
const LIBRARY: &str = "faketime/libfaketimeMT.so.1";

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
            .env("FAKETIME", format!("{:+}s", self.seconds))
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
            .env("NO_FAKE_STAT", "1");
    }
}

/// Returns the path of libfaketime.
fn library_path() -> PathBuf {
    let architecture_dirs = std::fs::read_dir(LIBRARIES_DIR).unwrap();
    architecture_dirs
        .filter_map(|entry| Some(entry.ok()?.path().join(LIBRARY)))
        .find(|path| path.exists())
        .expect("libfaketime is missing; run `dev/prepare test`, or install the package faketime")
}
