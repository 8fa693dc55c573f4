//! Stops the process when a file in the data folder is deleted or replaced.
//!
//! The database checks its files after each commit, before a message is acknowledged. This task
//! also finds the loss while no message arrives, and shuts the process down.

use std::time::Duration;

use service::TaskGroup;
use store_sqlite::{DatabaseFiles, FileCheckError, OpenFile};

const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The open files in the data folder that must not be deleted or replaced.
pub(super) struct FileCheck {
    pub database: DatabaseFiles,
    pub lock_file: OpenFile,
}

impl FileCheck {
    /// Checks the files every second until `tasks` is cancelled.
    ///
    /// # Errors
    /// If a file was deleted or replaced. The text contains the fix.
    pub async fn run(self, tasks: TaskGroup) -> Result<(), String> {
        loop {
            // A folder that cannot be read at the moment does not end the process. Until the folder
            // can be read again, the database acknowledges nothing.
            for result in [self.database.check(), self.lock_file.check()] {
                if let Err(FileCheckError::Lost(loss)) = result {
                    return Err(loss.to_string());
                }
            }
            tokio::select! {
                () = tokio::time::sleep(CHECK_INTERVAL) => {}
                () = tasks.cancelled() => return Ok(()),
            }
        }
    }
}
