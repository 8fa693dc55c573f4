//! Checks that the open files of the database are still the files at their paths.
//!
//! A process can continue to write to a file that was deleted or replaced. SQLite then reports
//! success, but the data is gone after a restart. Therefore the store checks its files after each
//! commit, before it reports success.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use store::StoreError;

/// A file that this process has opened, and the path at which it was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenFile {
    path: PathBuf,
    /// Device and inode. Another file cannot have the same values while the file is open.
    identity: (u64, u64),
}

/// What happened to an open file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FileChange {
    Deleted,
    Replaced,
}

impl OpenFile {
    /// Describes the file at `path`. The process must keep the file open.
    ///
    /// # Errors
    /// If the file does not exist or its folder cannot be read.
    pub fn at_path(path: PathBuf) -> io::Result<Self> {
        let identity = identity_at(&path)?;
        Ok(Self { path, identity })
    }

    fn find_change(&self) -> io::Result<Option<FileChange>> {
        match identity_at(&self.path) {
            Ok(identity) if identity == self.identity => Ok(None),
            Ok(_) => Ok(Some(FileChange::Replaced)),
            Err(error) if is_missing(&error) => Ok(Some(FileChange::Deleted)),
            Err(error) => Err(error),
        }
    }

    /// Checks that the open file is the file at its path.
    ///
    /// # Errors
    /// If the file was deleted or replaced, or if its folder cannot be read.
    pub fn check(&self) -> Result<(), FileCheckError> {
        match self.find_change() {
            Ok(None) => Ok(()),
            Ok(Some(change)) => Err(FileCheckError::Lost(LostFile {
                path: self.path.clone(),
                change: match change {
                    FileChange::Deleted => "deleted",
                    FileChange::Replaced => "replaced by another file",
                },
                moved_log: None,
            })),
            Err(source) => Err(FileCheckError::Unreadable {
                path: self.path.clone(),
                source,
            }),
        }
    }
}

fn identity_at(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = std::fs::metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

fn is_missing(error: &io::Error) -> bool {
    // The second error means that a folder of the path was replaced by a file.
    [io::ErrorKind::NotFound, io::ErrorKind::NotADirectory].contains(&error.kind())
}

/// A file was deleted or replaced while this process used it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{} was {change} while the process used it{}; the process cannot store data until it is \
     restarted: check the files in the folder, and restart the process; stop the process before \
     you delete or replace its files",
    path.display(),
    moved_log_text(moved_log.as_deref())
)]
pub struct LostFile {
    path: PathBuf,
    change: &'static str,
    /// New path of the write-ahead log of a lost database.
    moved_log: Option<PathBuf>,
}

fn moved_log_text(moved_log: Option<&Path>) -> String {
    moved_log.map_or_else(String::new, |path| {
        format!(" (its write-ahead log is now {})", path.display())
    })
}

/// The result of a failed check of an open file.
#[derive(Debug, thiserror::Error)]
pub enum FileCheckError {
    /// The file was deleted or replaced. Only a restart of the process helps.
    #[error(transparent)]
    Lost(LostFile),
    /// The path of the file cannot be read at the moment.
    #[error("cannot check {}: {source}; check the permissions of its folder and the disk", path.display())]
    Unreadable {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
}

/// The files of an open database: the database file, the write-ahead log, and the shared memory of
/// the log. All clones refer to the same files.
#[derive(Debug, Clone)]
pub struct DatabaseFiles {
    database: OpenFile,
    log: Option<OpenFile>,
    shared_memory: Option<OpenFile>,
    /// The first loss that a check found.
    loss: Arc<OnceLock<LostFile>>,
}

impl DatabaseFiles {
    /// Describes the files of the database at `path`. At least one connection must be open until
    /// the database is closed, so that SQLite does not create a new write-ahead log.
    pub(crate) fn at_path(path: &Path) -> io::Result<Self> {
        let database = OpenFile::at_path(path.to_owned())?;
        // SQLite resolves symbolic links before it appends the suffixes.
        let resolved_path = path.canonicalize()?;
        let with_suffix = |suffix: &str| {
            let mut path = resolved_path.clone().into_os_string();
            path.push(suffix);
            // The file systems without shared memory have no write-ahead log.
            OpenFile::at_path(path.into()).ok()
        };
        Ok(Self {
            database,
            log: with_suffix("-wal"),
            shared_memory: with_suffix("-shm"),
            loss: Arc::default(),
        })
    }

    /// Checks that the open files are the files at their paths. After a file was lost, every check
    /// fails.
    ///
    /// If the database file was lost, renames its write-ahead log. Otherwise the next process would
    /// apply the log to another database, for example to a restored backup.
    ///
    /// # Errors
    /// If a file was deleted or replaced, or if the folder cannot be read.
    pub fn check(&self) -> Result<(), FileCheckError> {
        if let Some(loss) = self.loss.get() {
            return Err(FileCheckError::Lost(loss.clone()));
        }
        let files = [
            Some(&self.database),
            self.log.as_ref(),
            self.shared_memory.as_ref(),
        ];
        for file in files.into_iter().flatten() {
            let Err(error) = file.check() else {
                continue;
            };
            let FileCheckError::Lost(mut loss) = error else {
                return Err(error);
            };
            let loss = self.loss.get_or_init(|| {
                if loss.path == self.database.path {
                    loss.moved_log = self.move_log();
                }
                loss
            });
            return Err(FileCheckError::Lost(loss.clone()));
        }
        Ok(())
    }

    /// Renames the write-ahead log if it is still the open file. Returns the new path.
    fn move_log(&self) -> Option<PathBuf> {
        let log = self.log.as_ref()?;
        let is_own_log = matches!(log.find_change(), Ok(None));
        let mut new_path = log.path.clone().into_os_string();
        new_path.push(".old");
        let new_path = PathBuf::from(new_path);
        (is_own_log && std::fs::rename(&log.path, &new_path).is_ok()).then_some(new_path)
    }

    /// Returns whether the connections can be closed.
    ///
    /// When the last connection to a file closes, SQLite copies the write-ahead log into the file,
    /// and deletes the file at the path of the log. Both files must belong to this database.
    /// Without an own file at the path of the log, the copy still saves the data.
    pub(crate) fn can_close(&self) -> bool {
        let log_change = self.log.as_ref().map(OpenFile::find_change);
        let is_log_replaced = matches!(log_change, Some(Ok(Some(FileChange::Replaced))));
        matches!(self.database.find_change(), Ok(None)) && !is_log_replaced
    }
}

impl From<FileCheckError> for StoreError {
    fn from(error: FileCheckError) -> Self {
        Self::Unavailable(Box::new(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_file_is_lost_when_it_is_deleted_or_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let handle = std::fs::File::create(&path).unwrap();
        let file = OpenFile::at_path(path.clone()).unwrap();
        file.check().unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(file.check().unwrap_err().to_string().contains("deleted"));
        std::fs::write(&path, "other").unwrap();
        assert!(file.check().unwrap_err().to_string().contains("replaced"));
        drop(handle);
    }

    #[test]
    fn the_log_of_a_lost_database_is_moved_away() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("test.db");
        let log = folder.path().join("test.db-wal");
        let handles = [&path, &log].map(|path| std::fs::File::create(path).unwrap());
        let files = DatabaseFiles::at_path(&path).unwrap();
        files.check().unwrap();
        std::fs::remove_file(&path).unwrap();
        let error = files.check().unwrap_err().to_string();
        assert!(error.contains("test.db-wal.old"), "{error}");
        assert!(!log.exists());
        // The first loss is reported again.
        assert_eq!(files.check().unwrap_err().to_string(), error);
        drop(handles);
    }
}
